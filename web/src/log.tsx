// The log: of pipes as printed, of a terminal as its transcript. Follows the end until it is scrolled up.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { setQuery } from "./address";
import { get, send, sessionPath } from "./api";
import { bytes, mainStream, type Session } from "./model";
import type { Line, LogView, Page, Source } from "./term/log";
import { dropWords, Moment, showAt } from "./timeline";
import { Trouble } from "./ui";

// A page of the server: some thousand lines of usual length.
const LIMIT = 1 << 17;
const MOST = 1 << 20;

export function Log({ session, at, of }: { session: Session; at: number | null; of: string }): JSX.Element {
  const streams = Object.keys(session.ends);
  const [stream, setStream] = useState(session.tty ? "tty" : "all");
  const [following, setFollowing] = useState(at === null);
  const [error, setError] = useState<unknown>(null);
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<LogView | null>(null);
  const shown = useRef<number | null>(null);
  const total = sum(session.ends);
  const [seen, setSeen] = useState(total);
  // The stream that "First line" and "Go to byte" use.
  const counted = stream === "all" ? (streams.find((each) => session.ends[each]) ?? of) : stream;
  const latest = useRef(session);
  latest.current = session;

  useEffect(() => {
    let isOpen = true;
    void import("./term").then((term) => {
      if (!isOpen || !box.current) return;
      view.current = new term.LogView(box.current, {
        source: sourceOf(() => latest.current, stream),
        marked: stream === "all",
        following(on) {
          setFollowing(on);
          setSeen(sum(latest.current.ends));
        },
        picked(line) {
          shown.current = line.offset;
          setQuery({ at: String(line.offset), of: line.stream === mainStream(session) ? "" : line.stream });
        },
        failed: setError,
      });
      view.current.show(cursorOf(at, of));
    });
    return () => {
      isOpen = false;
      view.current?.close();
      view.current = null;
    };
  }, [session.id, stream]);
  useEffect(() => {
    // A line that was clicked is in view already.
    if (at === null || at !== shown.current) view.current?.show(cursorOf(at, of));
    shown.current = at;
  }, [at, of]);
  useEffect(() => view.current?.grown(), [total]);

  const goTo = (offset: number): void => {
    showAt(session, offset, counted);
    // The view may have been scrolled since.
    if (offset === at && counted === of) view.current?.show(cursorOf(at, of));
  };
  const follow = (): void => (at === null ? view.current?.show(null) : setQuery({ at: "", of: "" }));
  return (
    <section class="log">
      <div class="bar">
        {following ? (
          <span class={session.exit ? "dim" : "connection live"}>{session.exit ? "the end" : "following"}</span>
        ) : (
          <button onClick={follow}>Follow{total > seen ? ` · ${bytes(total - seen)} new` : ""}</button>
        )}
        {at !== null && <Moment session={session} offset={at + 1} stream={of} words="printed" />}
        {streams.length > 1 && (
          <select aria-label="Stream" value={stream} onChange={(event) => setStream(event.currentTarget.value)}>
            {["all", ...streams].map((each) => (
              <option key={each} value={each}>
                {each === "all" ? streams.join(" and ") : `only ${each}`}
              </option>
            ))}
          </select>
        )}
        <button onClick={() => goTo(session.dropped_before[counted] ?? 0)}>First line</button>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            goTo(Math.min(Number(new FormData(event.currentTarget).get("offset")), session.ends[counted] ?? 0));
          }}
        >
          <input name="offset" inputMode="numeric" pattern="[0-9]+" required size={9} placeholder="Go to byte" aria-label="Go to byte" />
        </form>
        <span class="right dim">{bytes(total)}</span>
        <button onClick={() => navigator.clipboard.writeText(view.current!.text(false)).catch(setError)}>Copy</button>
        {!session.tty && <button class="wide-only" onClick={() => navigator.clipboard.writeText(view.current!.text(true)).catch(setError)}>Copy with colours</button>}
        <button onClick={() => void download(session, stream === "all" ? streams : [stream]).catch(setError)}>Download</button>
      </div>
      <Trouble error={error} />
      <div class="terminal" ref={box} />
    </section>
  );
}

/** The server finds the other streams as they were then. */
const cursorOf = (at: number | null, of: string): string | null => (at === null ? null : `${of}:${at}`);

interface Answer {
  from: string;
  cursor: string;
  more?: boolean;
  text?: string;
  data?: string;
  chunks?: { stream: string; offset: number; length: number }[];
  gaps: { stream: string; from: number; to: number; reason: string }[];
  dropped_before: number | Record<string, number>;
}

function sourceOf(latest: () => Session, stream: string): Source {
  const { id, tty } = latest();
  const ask = (what: string, cursor: string): Promise<Answer> =>
    get(sessionPath(id, `/${what}=${encodeURIComponent(cursor)}&stream=${stream}&format=${tty ? "text" : "raw"}`));
  // The text of a terminal has no offsets: it is read in parts, from gap to gap.
  const inside = ({ from, gaps }: Answer): Answer["gaps"] => (tty ? gaps.filter((gap) => gap.from > Number(from)) : []);
  return {
    async before(cursor, lines) {
      const answer = await ask(`tail?lines=${lines}&before`, cursor ?? format(latest().ends));
      const page = pageOf(answer, stream, tty);
      const gaps = inside(answer);
      const starts = [{ from: Number(answer.from), to: Number(answer.from) }, ...gaps];
      const parts = starts.map(({ from, to }, index) => ({ since: `tty:${from}`, size: (gaps[index]?.from ?? parse(answer.cursor)["tty"]!) - to }));
      if (!gaps.length || parts.some(({ size }) => size > MOST)) return page;
      page.lines = [];
      for (const { since, size } of parts) {
        const part = size > 0 ? await ask(`output?limit=${size}&since`, since) : { ...answer, text: "" };
        page.lines.push(...pageOf(part, stream, tty, since).lines);
      }
      return page;
    },
    async after(cursor, lines) {
      const answer = await ask(`output?limit=${LIMIT}&since`, cursor);
      const [gap] = inside(answer);
      return pageOf(gap ? await ask(`output?limit=${gap.from - Number(answer.from)}&since`, cursor) : answer, stream, tty, cursor, lines);
    },
  };
}

/** The lines of an answer. What was dropped or refused is a line of its own. */
function pageOf(answer: Answer, stream: string, tty: boolean, since?: string, longest = Infinity): Page {
  const encoder = new TextEncoder();
  const lines: Line[] = [];
  const begin = since ?? (tty ? `tty:${answer.from}` : "");
  const offsets = parse(since ?? answer.cursor);
  const first: Record<string, number> = {};
  const gapBefore = (each: string, offset: number): void => {
    const dropped = typeof answer.dropped_before === "number" ? answer.dropped_before : (answer.dropped_before[each] ?? 0);
    const gap = offset === dropped && dropped > 0 ? { from: 0, to: offset, reason: "dropped" } : answer.gaps.find((known) => known.stream === each && (known.to === offset || known.from === offset));
    if (gap) lines.push({ stream: each, offset, isGap: true, data: encoder.encode(`\x1b[0;33m── ${dropWords(gap.to - gap.from, gap.reason)}, ${each} ──\x1b[0m\n`) });
  };
  if (tty) {
    gapBefore("tty", Number(since ? offsets["tty"] : answer.from));
    const text = (answer.text ?? "").split("\n");
    text.forEach((line, index) => (index < text.length - 1 || line) && lines.push({ stream: "tty", offset: null, data: encoder.encode(index < text.length - 1 ? `${line}\n` : line) }));
    return { lines, first: begin, last: answer.cursor, more: answer.more ?? false };
  }
  const data = Uint8Array.from(atob(answer.data ?? ""), (c) => c.charCodeAt(0));
  const end = parse(answer.cursor);
  const chunks = answer.chunks ?? [{ stream, offset: (end[stream] ?? 0) - data.length, length: data.length }];
  let at = 0;
  for (const chunk of chunks) {
    first[chunk.stream] ??= chunk.offset;
    gapBefore(chunk.stream, chunk.offset);
    for (let from = at; from < at + chunk.length; ) {
      const newline = data.indexOf(10, from);
      const to = newline < 0 || newline >= at + chunk.length ? at + chunk.length : newline + 1;
      lines.push({ stream: chunk.stream, offset: chunk.offset + from - at, data: data.subarray(from, to) });
      from = to;
    }
    at += chunk.length;
  }
  const isCut = lines.length > longest;
  if (isCut) lines.length = longest;
  const last = isCut ? { ...offsets } : end;
  if (isCut) for (const line of lines) if (!line.isGap) last[line.stream] = line.offset! + line.data.length;
  return { lines, first: begin || format({ ...end, ...first }), last: format(last), more: isCut || (answer.more ?? false) };
}

const sum = (ends: Record<string, number>): number => Object.values(ends).reduce((all, each) => all + each, 0);
const parse = (cursor: string): Record<string, number> => Object.fromEntries(cursor.split(",").map((part) => [part.split(":")[0]!, Number(part.split(":")[1])]));
const format = (offsets: Record<string, number>): string => Object.entries(offsets).map((pair) => pair.join(":")).join(",");

/** The bytes as they are kept. The token is sent in a header, so this is not a plain link. */
async function download(session: Session, streams: string[]): Promise<void> {
  for (const stream of streams.filter((each) => session.ends[each])) {
    const answer = await send("GET", sessionPath(session.id, `/log/${stream}`));
    const address = URL.createObjectURL(await answer.blob());
    Object.assign(document.createElement("a"), { href: address, download: `${session.name ?? session.id}.${stream}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }
}
