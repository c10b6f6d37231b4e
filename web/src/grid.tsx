// Tiles of the filtered sessions: text that is read, never attached.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { address } from "./address";
import { useCell } from "./cell";
import { Filters } from "./list";
import { isLive, type Session, title } from "./model";
import { chosen, filterOf, listed, sessions, useFound, useScreens } from "./sessions";
import { Link, State, Text, Trouble, useNow } from "./ui";

export function Grid(): JSX.Element {
  const all = listed(useCell(sessions));
  const filter = filterOf(useCell(address).query);
  const now = useNow();
  const [shown, setShown] = useState<ReadonlySet<string>>(new Set());
  const found = useFound(filter.q, all.length);
  const rows = chosen(filter.state ? all : all.filter(isLive), filter, found.ids);
  const { texts, error } = useScreens(rows.filter((each) => shown.has(each.id)));
  const turn = (id: string, isShown: boolean): void =>
    setShown((before) => new Set(isShown ? [...before, id] : [...before].filter((each) => each !== id)));
  return (
    <main class="list">
      <h1 class="hidden">Grid</h1>
      <Filters filter={filter} all={all} shown={rows.length} busy={found.busy} />
      <Trouble error={found.error ?? error} />
      {rows.length === 0 && <p class="empty">Nothing runs here. Choose another state above, or start something.</p>}
      <div class="grid">
        {rows.map((session) => (
          <Tile key={session.id} session={session} text={texts[session.id] ?? ""} now={now} turn={turn} />
        ))}
      </div>
    </main>
  );
}

function Tile(props: { session: Session; text: string; now: number; turn: (id: string, isShown: boolean) => void }): JSX.Element {
  const { session, text, now, turn } = props;
  const ref = useRef<HTMLElement>(null);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => turn(session.id, entry?.isIntersecting ?? false));
    observer.observe(ref.current!);
    return () => observer.disconnect();
  }, [session.id]);
  return (
    <article class="tile" ref={ref}>
      <h2>
        <Link to={`/s/${session.id}`}>
          <Text longest={60}>{title(session)}</Text>
        </Link>
        <State session={session} now={now} />
      </h2>
      <pre aria-hidden="true">
        <span>{text.trimEnd()}</span>
      </pre>
    </article>
  );
}
