// Output over the whole time of a session, with marks. A click shows the screen or the log of that moment.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { setQuery } from "./address";
import { get, sessionPath } from "./api";
import { Cell, useCell } from "./cell";
import { bytes, clock, isLive, mainStream, plain, type Session, when } from "./model";
import { Text, useAnswer, useNow } from "./ui";

const SLICES = 160;
const PAUSE_MS = 4000;
const MINUTE_MS = 60_000;
const HEIGHT = 40;
const MARK = 5;
const NEAR_PX = 14;
const BARS = 21;

export interface Mark {
  kind: "signal" | "input" | "resize" | "end" | "gap";
  at: string;
  stream: string;
  offset: number | null;
  variant?: string;
  by?: string;
  rows?: number;
  cols?: number;
  bytes?: number;
  reason?: string;
  /** The number of the slice that it is in. */
  slice: number;
}

type Place = ReturnType<typeof placed>[number];

interface Slice {
  from: string;
  bytes: number;
  last: Record<string, number> | null;
  marks: Mark[];
}

/** The marks of the session that is shown, in order. */
export const marks = new Cell<Mark[]>([]);

/** Show the session as it was at an offset. The address names the stream where it is not the usual one. */
export function showAt(session: Session, offset: number, stream: string): void {
  setQuery({ at: String(offset), of: stream === mainStream(session) ? "" : stream }, "push");
}

/** When the last byte before an offset was printed; `at` where that is known already. */
export function Moment(props: { session: Session; at?: string | null; offset: number; stream: string; words: string }): JSX.Element {
  const { session, at, offset, stream, words } = props;
  const now = useNow();
  const { answer } = useAnswer<{ items: { at: string }[] }>(at ? null : sessionPath(session.id, `/frames?from=${offset}&stream=${stream}&limit=1`));
  const time = at ?? answer?.items[0]?.at;
  return (
    <span class="moment" title={`byte ${offset}`}>
      {time && `${words} ${when(time, now)}`}
    </span>
  );
}

export function Timeline({ session, at, of }: { session: Session; at: number | null; of: string }): JSX.Element | null {
  const slices = useSlices(session);
  const all = useCell(marks);
  if (slices.length === 0) return null;
  const most = Math.max(1, ...slices.map((each) => each.bytes));
  const end = (index: number, stream: string): number => slices[index]!.last?.[stream] ?? -1;
  const current = at === null ? SLICES - 1 : slices.findIndex((_, index) => end(index, of) >= at);
  const drawn = placed(all);
  const goTo = (index: number): void => {
    for (let back = Math.min(index, slices.length - 1); back >= 0; back--) {
      const last = slices[back]!.last;
      const stream = last && (of in last ? of : Object.keys(last)[0]!);
      if (stream) return showAt(session, last[stream]!, stream);
    }
    showAt(session, 0, of);
  };
  const follow = (mark: Mark): void => (mark.offset === null ? goTo(mark.slice) : showAt(session, mark.offset, mark.stream));
  const click = (event: MouseEvent & { currentTarget: SVGElement }): void => {
    const box = event.currentTarget.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    // A mark is small: a click near it selects it.
    const away = ({ x, y, width }: Place): number => Math.hypot(((x + width / 2) * box.width) / SLICES - left, y + MARK / 2 - top);
    const nearest = drawn.reduce<Place | null>((best, each) => (best && away(best) <= away(each) ? best : each), null);
    if (nearest && away(nearest) < NEAR_PX) follow(nearest.mark);
    else goTo(Math.floor((left / box.width) * slices.length));
  };
  const key = (event: KeyboardEvent): void => {
    const from = current < 0 ? 0 : current;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: slices.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    goTo(Math.max(0, to));
  };
  return (
    <section class="timeline" aria-label="Timeline">
      <span class="dim">{clock(slices[0]!.from)}</span>
      <svg
        viewBox={`0 0 ${SLICES} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="slider"
        tabindex={0}
        aria-label="Moment"
        aria-valuemin={0}
        aria-valuemax={SLICES - 1}
        aria-valuenow={Math.max(0, current)}
        aria-valuetext={at === null ? "now" : clock(slices[Math.max(0, current)]!.from)}
        onClick={click}
        onKeyDown={key}
      >
        {slices.map((slice, index) => {
          const height = slice.bytes ? 2 + (BARS - 2) * (Math.log1p(slice.bytes) / Math.log1p(most)) : 0.5;
          return (
            <rect key={index} x={index} y={HEIGHT - height} width={0.8} height={height} class={at !== null && index <= current ? "bar passed" : "bar"}>
              <title>{`${clock(slice.from)} · ${bytes(slice.bytes)}`}</title>
            </rect>
          );
        })}
        {at !== null && <rect x={current + 0.9} y={0} width={0.2} height={HEIGHT} class="now" />}
        {drawn.map(({ mark, x, y, width }, index) => (
          <rect key={`m${index}`} x={x} y={y} width={width} height={MARK} class={`mark ${mark.kind}`}>
            <title>{plain(nameOf(mark))}</title>
          </rect>
        ))}
      </svg>
      <span class="dim">{isLive(session) ? "now" : clock(slices.at(-1)!.from)}</span>
      <details hidden={all.length === 0} onKeyDown={(event) => event.key === "Escape" && ((event.currentTarget.open = false), event.stopPropagation())}>
        <summary>{all.length === 1 ? "1 mark" : `${all.length} marks`}</summary>
        <ol class="plain" aria-label="Marks">
          {all.map((mark, index) => (
            <li key={index}>
              <button title={`byte ${mark.offset}`} aria-current={mark.offset !== null && mark.offset === at ? "true" : undefined} onClick={() => follow(mark)}>
                <span class="dim">{clock(mark.at)}</span> <Text longest={80}>{nameOf(mark)}</Text>
              </button>
            </li>
          ))}
        </ol>
      </details>
    </section>
  );
}

/** Read again after the session printed or ended, at most every few seconds; of a quiet one every minute. */
function useSlices(session: Session): Slice[] {
  const [slices, setSlices] = useState<Slice[]>([]);
  const asked = useRef(0);
  const minute = useNow(MINUTE_MS);
  const end = Object.values(session.ends).join() + session.state + session.needs_input?.since + (isLive(session) ? minute : "");
  useEffect(() => {
    setSlices([]);
    asked.current = 0;
    return () => marks.set([]);
  }, [session.id]);
  useEffect(() => {
    const timer = setTimeout(async () => {
      asked.current = Date.now();
      const { items } = await get<{ items: Slice[] }>(sessionPath(session.id, `/frames?buckets=${SLICES}`)).catch(() => ({ items: null }));
      if (!items) return;
      setSlices(items);
      const all = items.flatMap((each, slice) => each.marks.map((mark) => ({ ...mark, slice }))).sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
      marks.set(all.filter((mark, index) => !goesOn(mark, all[index - 1])));
    }, Math.max(0, asked.current + PAUSE_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [session.id, end]);
  return slices;
}

/** Keys of one slice that follow each other are one mark, and so are sizes with nothing printed between them. */
const goesOn = (mark: Mark, before?: Mark): boolean =>
  mark.kind === before?.kind &&
  ((mark.kind === "input" && mark.by === before.by && mark.slice === before.slice) ||
    (mark.kind === "resize" && (mark.slice === before.slice || mark.offset === before.offset)));

/** Three marks of a slice are placed above each other, more beside them. */
function placed(all: Mark[]): { mark: Mark; x: number; y: number; width: number }[] {
  const before = new Map<number, number>();
  return all.map((mark) => {
    const { slice } = mark;
    const nth = before.get(slice) ?? 0;
    before.set(slice, nth + 1);
    const width = 0.9 / Math.ceil(all.filter((each) => each.slice === slice).length / 3);
    return { mark, x: slice + Math.floor(nth / 3) * width, y: (nth % 3) * 6, width };
  });
}

const DROPS: Record<string, string> = { dropped: "dropped by the cap", disk: "refused by the disk", skipped: "skipped" };

export const dropWords = (count: number, reason: string): string => `${bytes(count)} ${DROPS[reason] ?? "missing"}`;

function nameOf(mark: Mark): string {
  if (mark.kind === "signal") return { needs_input: "question" }[mark.variant!] ?? mark.variant!.replaceAll("_", " ");
  if (mark.kind === "input") return `input by ${mark.by ?? "unknown"}`;
  if (mark.kind === "resize") return `size ${mark.cols}×${mark.rows}`;
  if (mark.kind === "gap") return dropWords(mark.bytes!, mark.reason!);
  return "the end";
}
