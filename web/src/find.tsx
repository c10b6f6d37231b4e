// Find over everything that the log keeps: the server's own search, newest first.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, setQuery } from "./address";
import { get, getBytes, sessionPath } from "./api";
import { useCell } from "./cell";
import { mainStream, plain, type Session } from "./model";
import { Trouble } from "./ui";

interface Hit {
  offset: number;
  line: number | null;
  text: string;
  spans: [number, number][];
  before: string[];
  after: string[];
}

interface Found {
  hits: Hit[];
  next: number | null;
  complete: boolean;
}

const CONTEXT = 1;
// Hits of a page: several times what is in view.
const HITS = 50;
// A line of a terminal that is longer is shown as far as this.
const LINE_BYTES = 4096;

export function Find({ session }: { session: Session }): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  const { query } = useCell(address);
  const [isExpression, setIsExpression] = useState(false);
  const [found, setFound] = useState<Record<string, Found>>({});
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    const before = document.activeElement;
    field.current?.focus();
    if (field.current?.value) void search();
    return () => {
      const isThere = before instanceof HTMLElement && before.isConnected && !before.closest("[inert]");
      (isThere ? before : document.querySelector<HTMLElement>(".past button, .terminal textarea"))?.focus();
    };
  }, []);
  const page = (stream: string, before?: number): Promise<Found> => {
    const asked = new URLSearchParams({ [isExpression ? "re" : "text"]: field.current!.value, stream, context: String(CONTEXT), limit: String(HITS) });
    if (before !== undefined) asked.set("before", String(before));
    return get(sessionPath(session.id, `/search?${asked}`));
  };
  const attempt = async (work: () => Promise<void>): Promise<void> => {
    setBusy(true);
    setError(null);
    await work().catch(setError);
    setBusy(false);
  };
  const search = (): Promise<void> =>
    attempt(async () => {
      const text = field.current?.value;
      if (!text) return;
      setFound({});
      setQuery({ find: text });
      const streams = Object.keys(session.ends).filter((each) => session.ends[each]);
      const pages = await Promise.all(streams.map(async (each) => [each, await page(each)] as const));
      setFound(Object.fromEntries(pages));
    });
  const more = (stream: string): Promise<void> =>
    attempt(async () => {
      const known = found[stream]!;
      const next = await page(stream, known.next ?? undefined);
      setFound({ ...found, [stream]: { ...next, hits: [...known.hits, ...next.hits] } });
    });
  const open = (hit: Hit, stream: string): Promise<void> =>
    attempt(async () => {
      const tab = query.get("tab") === "log" ? "log" : "";
      let at = hit.offset;
      // The screen shows a line when it has been printed.
      if (session.tty && !tab) {
        const line = await getBytes(sessionPath(session.id, "/log/tty"), at, at + LINE_BYTES);
        at += line.indexOf(10) < 0 ? line.length : line.indexOf(10) + 1;
      }
      setQuery({ at: String(at), of: stream === mainStream(session) ? "" : stream, tab }, "push");
    });
  const leave = (): void => setQuery({ find: "" });
  const streams = Object.keys(found);
  const count = streams.reduce((all, each) => all + found[each]!.hits.length, 0);
  return (
    <section class="find" role="search" onKeyDown={(event) => event.key === "Escape" && (event.stopPropagation(), leave())}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void search();
        }}
      >
        <input ref={field} defaultValue={query.get("find")!.replace(/^1$/, "")} aria-label="Find in the log" placeholder="Find in all output" />
        <label class="check">
          <input type="checkbox" checked={isExpression} onChange={(event) => setIsExpression(event.currentTarget.checked)} /> expression
        </label>
        <button class="primary" disabled={busy}>
          Find
        </button>
        <span class="dim" role="status">
          {busy ? "searching…" : streams.length ? `${count}${streams.some((each) => !found[each]!.complete) ? " and more" : ""} found, newest first` : ""}
        </span>
        <button class="right" type="button" onClick={leave}>
          Close
        </button>
      </form>
      <Trouble error={error} />
      <div class="hits">
        {streams.map((stream) => (
          <section key={stream} aria-label={`Hits in ${stream}`}>
            {streams.length > 1 && found[stream]!.hits.length > 0 && <h3 class="dim">{stream}</h3>}
            <ol class="plain">
              {found[stream]!.hits.map((hit) => (
                <li key={hit.offset}>
                  <button onClick={() => void open(hit, stream)}>
                    <span class="age">{hit.line === null ? "" : `line ${hit.line}`}</span>
                    <span class="lines">
                      {hit.before.map((each) => (
                        <span class="dim">{plain(each)}</span>
                      ))}
                      <Marked hit={hit} />
                      {hit.after.map((each) => (
                        <span class="dim">{plain(each)}</span>
                      ))}
                    </span>
                  </button>
                </li>
              ))}
            </ol>
            {!found[stream]!.complete && (
              <button disabled={busy} onClick={() => void more(stream)}>
                Show older matches{streams.length > 1 ? ` in ${stream}` : ""}
              </button>
            )}
          </section>
        ))}
      </div>
    </section>
  );
}

/** The line around its first match, which is set off. */
function Marked({ hit }: { hit: Hit }): JSX.Element {
  const [low, high] = hit.spans[0] ?? [0, 0];
  const from = Math.max(0, low - 80);
  return (
    <bdi>
      {from > 0 ? "…" : ""}
      {plain(hit.text.slice(from, low))}
      <mark>{plain(hit.text.slice(low, high))}</mark>
      {plain(hit.text.slice(high))}
    </bdi>
  );
}
