// The list: one row a session under the headings of what needs a person, runs, failed and ended.
import { type JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { address, go, keepFilter, setQuery } from "./address";
import { can } from "./api";
import { useCell } from "./cell";
import { dialog } from "./dialogs";
import { age, clock, look, oneLine, plain, ran, type Session, title } from "./model";
import { chosen, type Filter, FILTERS, filterOf, groupOf, GROUPS, hasOlder, isLoaded, labelsOf, listed, ORDERS, readOlder, SECTIONS, sectionOf, sessions, unreachable, useFound, useScreens } from "./sessions";
import { Copy, isTyping, Link, State, Text, Trouble, useAnswer, useNow, Waiting } from "./ui";

const SPARE_PX = 320;
const HEADING_PX = 32;
const WIDE = matchMedia("(min-width: 1100px)");
const TOUCH = matchMedia("(pointer: coarse), (max-width: 640px)");

export function List(): JSX.Element {
  const all = useCell(sessions);
  const loaded = useCell(isLoaded);
  const filter = filterOf(useCell(address).query);
  const now = useNow();
  const found = useFound(filter.q, all.size);
  const fresh = useMemo(() => chosen(listed(all), filter, found.ids), [all, found.ids, JSON.stringify(filter)]);
  useEffect(() => keepFilter(filter), [JSON.stringify(filter)]);
  const pressed = useRef<Session[] | null>(null);
  // A row must not move away under the pointer while it is pressed; its text may change.
  const rows = pressed.current?.map((each) => all.get(each.id) ?? each) ?? fresh;
  const [selected, select] = useState<string | null>(null);
  const current = rows.find((each) => each.id === selected) ?? rows[0] ?? null;
  const hold = (): void => {
    pressed.current = fresh;
    const over = new AbortController();
    const release = (): void => {
      pressed.current = null;
      over.abort();
    };
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, release, over);
  };
  return (
    <main class="list" onPointerDown={hold}>
      <h1 class="hidden">Sessions</h1>
      <Filters filter={filter} all={listed(all)} shown={rows.length} busy={found.busy} />
      <Trouble error={found.error} />
      <Unreachable />
      <Older />
      <div class="split">
        {rows.length > 0 ? (
          <Rows key={JSON.stringify(filter)} rows={rows} group={filter.group} now={now} current={current!} isChosen={selected !== null} select={select} isHeld={pressed.current !== null} />
        ) : loaded && !found.busy ? (
          <Empty isFiltered={all.size > 0} />
        ) : (
          <Waiting what="the list of sessions" />
        )}
        {WIDE.matches && current && <Preview session={current} now={now} />}
      </div>
    </main>
  );
}

interface Machine {
  name: string;
  state: string;
  why: string | null;
  seen_at: string | null;
}

/** The machines that do not answer: counted by reason; their names are shown on request. */
function Unreachable(): JSX.Element | null {
  const counts = Object.entries(useCell(unreachable));
  const total = counts.reduce((sum, [, count]) => sum + count, 0);
  const [isOpen, open] = useState(false);
  const { answer, error, again } = useAnswer<{ items: Machine[] }>(isOpen && total ? "/v1/nodes" : null);
  useEffect(again, [total]);
  if (!total) return null;
  const silent = answer?.items.filter((each) => each.state === "unreachable") ?? [];
  return (
    <details class="unreachable" open={isOpen} onToggle={(event) => open(event.currentTarget.open)}>
      <summary>
        {total === 1 ? "1 machine does not answer: " : `${total} machines do not answer: `}
        <Text>{counts.map(([why, count]) => (total === 1 ? why : `${count} ${why}`)).join(", ")}</Text>
      </summary>
      <Trouble error={error} again={again} />
      <ul>
        {silent.map((each) => (
          <li key={each.name}>
            {each.name} <Text class="dim">{`${each.why}${each.seen_at ? `; last heard ${age(each.seen_at)} ago` : ""}`}</Text>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** Other machines have more finished sessions than the list: more of them are read when they are asked for. */
function Older(): JSX.Element | null {
  const isCut = useCell(hasOlder);
  const [{ isReading, error }, set] = useState<{ isReading: boolean; error: unknown }>({ isReading: false, error: null });
  if (!isCut) return null;
  const read = (): void => {
    set({ isReading: true, error: null });
    readOlder().then(() => set({ isReading: false, error: null }), (error) => set({ isReading: false, error }));
  };
  return (
    <div class="older">
      Other machines have older finished sessions, which are not listed; the filter finds them. <button disabled={isReading} onClick={read}>Show more</button>
      <Trouble error={error} again={read} />
    </div>
  );
}

export function Filters({ filter, all, shown, busy }: { filter: Filter; all: Session[]; shown: number; busy: boolean }): JSX.Element {
  const values = (of: (session: Session) => (string | null)[]): string[] => [...new Set(all.flatMap(of).filter((each) => each !== null))].sort();
  const counts = new Map<string, number>();
  for (const each of all) counts.set(sectionOf(each), (counts.get(sectionOf(each)) ?? 0) + 1);
  return (
    <div class="filters" role="search">
      <span class="chips">
        {SECTIONS.map(([key, name, glyph, tone]) => (
          <button
            key={key}
            class={`chip ${counts.get(key) ? tone : "quiet"}`}
            aria-pressed={filter.state === key}
            onClick={() => setQuery({ state: filter.state === key ? "" : key }, "push")}
          >
            <span aria-hidden="true">{glyph}</span> {name} <b>{counts.get(key) ?? 0}</b>
          </button>
        ))}
      </span>
      <input
        id="filter"
        type="search"
        placeholder="Filter   /"
        aria-label="Filter sessions by name, command, directory or label"
        value={filter.q}
        onInput={(event) => setQuery({ q: event.currentTarget.value })}
        onKeyDown={(event) => (event.key === "Escape" || event.key === "Enter") && event.currentTarget.blur()}
      />
      <span class="choices">
        <Choice name="owner" value={filter.owner} values={values((each) => [each.owner])} />
        <Choice name="label" value={filter.label} values={values(labelsOf)} />
        <Choice name="place" value={filter.place} values={values((each) => [each.place])} />
        <Choice name="group" value={filter.group} values={GROUPS} empty="by state" />
        <Choice name="sort" value={filter.sort} values={ORDERS} empty="newest first" />
        {(busy || shown !== all.length) && <span class="count">{busy ? "searching…" : `${shown} of ${all.length}`}</span>}
        {FILTERS.some((name) => filter[name]) && <button onClick={() => go(location.pathname)}>Clear</button>}
      </span>
    </div>
  );
}

function Choice(props: { name: string; value: string; values: string[]; empty?: string }): JSX.Element | null {
  if (props.values.length < 2 && !props.value) return null;
  const words: Record<string, string> = { group: "by", sort: "order:" };
  return (
    <select aria-label={props.name} value={props.value} onChange={(event) => setQuery({ [props.name]: event.currentTarget.value }, "push")}>
      <option value="">{props.empty ?? `any ${props.name}`}</option>
      {props.values.map((value) => (
        <option key={value} value={value}>
          {value === "none" ? "no headings" : `${words[props.name] ?? ""} ${plain(value, 60)}`}
        </option>
      ))}
    </select>
  );
}

interface RowsProps {
  rows: Session[];
  group: string;
  now: number;
  current: Session;
  isChosen: boolean;
  isHeld: boolean;
  select: (id: string) => void;
}

/** Rows and headings with the place of each. While a row is pressed, the headings stay where they were too. */
function usePlaces(rows: Session[], group: string, rowHeight: number, isHeld: boolean): { tops: number[]; heads: [string, number][]; height: number } {
  const places = useMemo(() => {
    const tops: number[] = [];
    const heads: [string, number][] = [];
    let top = 0;
    for (const row of rows) {
      const name = groupOf(row, group);
      if (name && name !== heads.at(-1)?.[0]) {
        heads.push([name, top]);
        top += HEADING_PX;
      }
      tops.push(top);
      top += rowHeight;
    }
    return { tops, heads, height: top };
  }, [rows, group, rowHeight]);
  const before = useRef(places);
  if (!isHeld) before.current = places;
  return before.current;
}

/** Only the rows in view are in the document. */
function Rows({ rows, group, now, current, isChosen, isHeld, select }: RowsProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  const wantsFocus = useRef(false);
  const rowHeight = TOUCH.matches ? 64 : 32;
  const { tops, heads, height } = usePlaces(rows, group, rowHeight, isHeld);
  const measure = (): void => {
    if (box.current) setView({ top: box.current.scrollTop, height: box.current.clientHeight });
  };
  useLayoutEffect(() => {
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  const at = rows.indexOf(current);
  // Keys may come faster than rows are drawn.
  const reached = useRef(-1);
  reached.current = isChosen ? at : -1;
  useEffect(() => {
    // Further keys may have been pressed since this was drawn.
    if (!wantsFocus.current || reached.current !== at) return;
    wantsFocus.current = false;
    const row = box.current?.querySelector<HTMLElement>("a[data-current]");
    row?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: "nearest" });
  });
  useEffect(() => {
    const key = (event: KeyboardEvent): void => {
      if (isTyping(event) || event.ctrlKey || event.altKey || event.metaKey) return;
      const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
      const steps: Record<string, number> = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
      const step = steps[event.key];
      if (step === undefined) return;
      event.preventDefault();
      reached.current = Math.max(0, Math.min(rows.length - 1, reached.current + step));
      wantsFocus.current = true;
      select(rows[reached.current]!.id);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });
  const isShown = (top: number): boolean => top > view.top - SPARE_PX && top < view.top + view.height + SPARE_PX;
  return (
    <div class="rows" ref={box} onScroll={measure} tabIndex={-1}>
      <div class="columns" aria-hidden="true">
        {["State", "Session", "Owner", "", "Ran", "Active"].map((name) => (
          <span key={name}>{name}</span>
        ))}
      </div>
      <ul style={{ height: `${height}px` }} aria-label="Sessions">
        {heads.map(([name, top]) => isShown(top) && (
          <li key={`h ${name}`} class="heading" style={{ top: `${top}px`, height: `${HEADING_PX}px` }}>
            <h2>{plain(name, 60)}</h2>
          </li>
        ))}
        {rows.map((session, index) => (isShown(tops[index]!) || index === at) && (
          <li key={session.id} style={{ top: `${tops[index]}px`, height: `${rowHeight}px` }}>
            <Row session={session} now={now} isCurrent={index === at} select={select} />
          </li>
        ))}
      </ul>
    </div>
  );
}

function Row({ session, now, isCurrent, select }: { session: Session; now: number; isCurrent: boolean; select: (id: string) => void }): JSX.Element {
  const viewers = session.attached.control + session.attached.observe;
  const active = session.ended_at ?? session.last_output_at;
  return (
    <Link to={`/s/${session.id}`} class="row" row={session.id} isCurrent={isCurrent} onFocus={() => select(session.id)}>
      <State session={session} now={now} />
      <span class="name">
        <Text>{title(session)}</Text>
        <Why session={session} now={now} />
        <Labels session={session} />
      </span>
      <span class="owner">{session.owner && <Text longest={40}>{session.owner}</Text>}</span>
      <span class="viewers" title={viewers ? `${viewers} attached` : undefined}>
        {viewers ? `⌨ ${viewers}` : ""}
      </span>
      <span class="age ran" title={`started ${clock(session.created_at, now)}`}>
        {ran(session, now)}
      </span>
      <span class="age" title={`${session.ended_at ? "ended" : "last output"} ${active ? clock(active, now) : "none"}`}>
        {active ? `${age(active, now)} ago` : "–"}
      </span>
    </Link>
  );
}

/** Its labels, and its place if that is another one. */
function Labels({ session }: { session: Session }): JSX.Element | null {
  const labels = [...labelsOf(session), ...(session.place === "local" ? [] : [session.place])];
  if (!labels.length) return null;
  return (
    <span class="labels">
      {labels.map((each) => (
        <Text key={each} class="tag" longest={60}>
          {each}
        </Text>
      ))}
    </span>
  );
}

/** Beside the name: why it is in its state, what it asks, or what runs. */
function Why({ session, now }: { session: Session; now: number }): JSX.Element | null {
  const { note } = look(session, now);
  const asks = session.needs_input;
  if (note) return <Text class="why" longest={400}>{note}</Text>;
  if (asks) return asks.secret ? <span class="ask">asks for a secret</span> : <Text class="line">{asks.line ?? ""}</Text>;
  return session.name ? <Text class="command">{oneLine(session)}</Text> : null;
}

const FIRST_LINES = ["hold start --name web -- npm run dev", "hold run -- make test", "hold start --tty -- python3"];

function Empty({ isFiltered }: { isFiltered: boolean }): JSX.Element {
  if (isFiltered) {
    return (
      <div class="empty">
        <p>No session matches the filter.</p>
        <button onClick={() => go(location.pathname)}>Clear the filter</button>
      </div>
    );
  }
  return (
    <div class="empty">
      <h2>Nothing is running here yet</h2>
      <p>Start something in a terminal, and it appears here:</p>
      {FIRST_LINES.map((line) => (
        <Copy key={line} text={line} />
      ))}
      {can("manage") && (
        <p>
          or <button class="primary" onClick={() => dialog.set({ is: "start" })}>Start a command</button>
        </p>
      )}
    </div>
  );
}

/** The screen or the last lines, by reading: it attaches to nothing. */
function Preview({ session, now }: { session: Session; now: number }): JSX.Element {
  const { texts, error } = useScreens([session]);
  const { note } = look(session, now);
  return (
    <aside class="preview" aria-label="Preview">
      <header>
        <h2>
          <Text>{title(session)}</Text>
        </h2>
        <State session={session} now={now} />
        <Link to={`/s/${session.id}`} class="button">
          Open
        </Link>
      </header>
      <p class="command">
        <Text>{oneLine(session)}</Text>
      </p>
      <p class="dim">
        <Text>{session.cwd}</Text> <Labels session={session} />
      </p>
      {note && (
        <p class="note">
          <Text longest={400}>{note}</Text>
        </p>
      )}
      <Trouble error={error} />
      <pre tabIndex={0} role="region" aria-label="Last output">
        {texts[session.id] === "" ? <span class="dim">No output.</span> : texts[session.id]}
      </pre>
    </aside>
  );
}
