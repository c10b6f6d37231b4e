// The screen of a terminal session at an earlier moment, and playing on from there. The live terminal stays attached in the background.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { setQuery } from "./address";
import { get, getBytes, send, sessionPath } from "./api";
import { useCell } from "./cell";
import { isLive, type Session, span } from "./model";
import type { Progress, Replay, Source } from "./term/replay";
import { marks, Moment } from "./timeline";
import { Trouble } from "./ui";

const SPEEDS = [0.5, 1, 2, 4, 8, 16];

export function Past({ session, at }: { session: Session; at: number }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const first = useRef<HTMLButtonElement>(null);
  const replay = useRef<Replay | null>(null);
  const [progress, setProgress] = useState<Progress>({ offset: at, at: null, playing: false, skipped: 0 });
  const [error, setError] = useState<unknown>(null);
  const [speed, setSpeed] = useState(1);
  const placed = useCell(marks).filter((each) => each.offset !== null);
  const previous = placed.findLast((each) => each.offset! < progress.offset);
  const next = placed.find((each) => each.offset! > progress.offset);
  useEffect(() => {
    let isOpen = true;
    // The focus stays in the list of hits.
    if (!document.activeElement?.closest(".find")) first.current?.focus();
    void import("./term").then((term) => {
      if (!isOpen || !box.current) return;
      replay.current = new term.Replay(box.current, source(session.id), setProgress);
      act(replay.current.seek(at));
    });
    return () => {
      isOpen = false;
      replay.current?.close();
      replay.current = null;
    };
  }, [session.id]);
  useEffect(() => {
    if (replay.current && replay.current.offset !== at) act(replay.current.seek(at));
  }, [at]);
  const act = (work: Promise<void> | undefined): void => {
    setError(null);
    work?.catch(setError);
  };
  const leave = (): void => setQuery({ at: "" }, "push");
  const change = (value: number): void => {
    setSpeed(value);
    replay.current?.setSpeed(value);
  };
  return (
    <section class="terminal-box past" onKeyDown={(event) => event.key === "l" && !event.ctrlKey && leave()}>
      <div class="bar">
        <button ref={first} class="wide-enough" onClick={() => (progress.playing ? replay.current?.pause() : act(replay.current?.play()))}>
          {progress.playing ? "❚❚ Pause" : "▶ Play"}
        </button>
        <button onClick={() => act(replay.current?.stepOnce())}>Step</button>
        <button aria-label="Previous mark" disabled={!previous} onClick={() => previous && setQuery({ at: String(previous.offset) }, "push")}>
          ‹ Mark
        </button>
        <button aria-label="Next mark" disabled={!next} onClick={() => next && setQuery({ at: String(next.offset) }, "push")}>
          Mark ›
        </button>
        <select aria-label="Speed" value={speed} onChange={(event) => change(Number(event.currentTarget.value))}>
          {SPEEDS.map((each) => (
            <option key={each} value={each}>
              {each}×
            </option>
          ))}
        </select>
        <Moment session={session} at={progress.at} offset={progress.offset} stream="tty" words="as it was" />
        {progress.skipped > 0 && <span class="dim">{span(progress.skipped / 1000)} without output skipped</span>}
        <button class="right primary" onClick={leave}>
          {isLive(session) ? "Live" : "The end"}
        </button>
      </div>
      <Trouble error={error} />
      <div class="terminal" ref={box} />
    </section>
  );
}

function source(id: string): Source {
  return {
    async screen(offset) {
      const answer = await send("GET", sessionPath(id, `/screen?format=restore&at=${offset}`));
      const [cols, rows] = answer.headers.get("Holdfast-Size")!.split("x").map(Number);
      const data = new Uint8Array(await answer.arrayBuffer());
      return { data, offset: Number(answer.headers.get("Holdfast-Offset")), rows: rows!, cols: cols! };
    },
    frames: (from) => get(sessionPath(id, `/frames?from=${from}&stream=tty&limit=1000`)),
    bytes: (from, to) => getBytes(sessionPath(id, "/log/tty"), from, to),
  };
}
