// The screen of a terminal session as it was at an offset, and from there on at any speed. It reads and writes nothing else.
import { openScreen, type Screen } from "./screen";

interface Frame {
  kind: "data" | "resize";
  at: string;
  offset: number;
  length?: number;
  rows?: number;
  cols?: number;
}

/** The bytes that make a blank terminal of this size show the screen at an offset. */
interface Shown {
  data: Uint8Array;
  offset: number;
  rows: number;
  cols: number;
}

export interface Source {
  screen: (offset: number) => Promise<Shown>;
  frames: (from: number) => Promise<{ items: Frame[]; next: number | null }>;
  /** At least the first byte, and no more than there is. */
  bytes: (from: number, to: number) => Promise<Uint8Array>;
}

export interface Progress {
  offset: number;
  at: string | null;
  playing: boolean;
  skipped: number;
}

const LONGEST_PAUSE_MS = 2000;
const BLOCK = 1 << 18;
// A timer is not more exact than this, and what is drawn more often is not seen.
const TICK_MS = 4;
const TELL_MS = 100;

export class Replay {
  private readonly screen: Screen;
  private frames: Frame[] = [];
  private block: { from: number; data: Uint8Array } = { from: 0, data: new Uint8Array() };
  private position = 0;
  private time: string | null = null;
  // Counts what was asked for: work for an older request ends by itself.
  private run = 0;
  private speed = 1;
  private skipped = 0;
  private playing = false;
  private said = 0;

  constructor(
    private readonly into: HTMLElement,
    private readonly source: Source,
    private readonly progress: (progress: Progress) => void,
  ) {
    this.screen = openScreen(into, { readOnly: true, refit: () => undefined });
  }

  get offset(): number {
    return this.position;
  }

  close(): void {
    this.run++;
    this.screen.close();
  }

  /** Show the screen at an offset. */
  async seek(offset: number): Promise<void> {
    const run = ++this.run;
    this.playing = false;
    const shown = await this.source.screen(offset);
    if (run !== this.run) return;
    this.paint(shown);
    this.frames = [];
    this.time = null;
    this.skipped = 0;
    await this.drawn();
    this.tell();
  }

  private paint(shown: Shown): void {
    const { term } = this.screen;
    term.reset();
    term.resize(shown.cols, shown.rows);
    term.write(shown.data);
    this.position = shown.offset;
  }

  setSpeed(speed: number): void {
    this.speed = speed;
  }

  pause(): void {
    this.run++;
    this.playing = false;
    this.tell();
  }

  /** Play to the end of what there is, or until something else is asked for. */
  async play(): Promise<void> {
    const run = ++this.run;
    this.playing = true;
    this.tell();
    let due = performance.now();
    for (let frame; (frame = await this.nextFrame()) && run === this.run; ) {
      due = Math.max(due + this.pauseBefore(frame) / this.speed, performance.now() - TELL_MS);
      const wait = due - performance.now();
      if (wait > TICK_MS) {
        this.tell();
        await new Promise((done) => setTimeout(done, wait));
        if (run !== this.run) return;
      }
      await this.show(frame);
      if (run !== this.run) return;
      if (performance.now() - this.said > TELL_MS) {
        await this.drawn();
        this.tell();
      }
    }
    if (run !== this.run) return;
    await this.drawn();
    this.playing = false;
    this.tell();
  }

  /** One frame further. */
  async stepOnce(): Promise<void> {
    this.run++;
    this.playing = false;
    const frame = await this.nextFrame();
    if (frame) await this.show(frame);
    await this.drawn();
    this.tell();
  }

  /** Milliseconds of silence before a frame, without what is skipped. */
  private pauseBefore(frame: Frame): number {
    const ms = this.time ? Math.max(0, Date.parse(frame.at) - Date.parse(this.time)) : 0;
    this.skipped += Math.max(0, ms - LONGEST_PAUSE_MS);
    return Math.min(ms, LONGEST_PAUSE_MS);
  }

  private async nextFrame(): Promise<Frame | null> {
    for (let from: number | null = this.position; this.frames.length === 0 && from !== null; ) {
      const page: { items: Frame[]; next: number | null } = await this.source.frames(from);
      this.frames = page.items.filter((each) => (each.kind === "resize" ? !this.isShown(each) : each.offset + each.length! > this.position));
      from = page.next === from ? null : page.next;
    }
    return this.frames[0] ?? null;
  }

  /** A size at the current offset is already applied if the screen has it. */
  private isShown({ offset, rows, cols }: Frame): boolean {
    const { term } = this.screen;
    return offset < this.position || (offset === this.position && term.rows === rows && term.cols === cols);
  }

  private async show(frame: Frame): Promise<void> {
    const run = this.run;
    if (frame.kind === "resize") {
      // Emulators move text differently when their size changes. The server's screen is the session's.
      const shown = await this.source.screen(frame.offset);
      await this.drawn();
      if (run === this.run) this.paint(shown);
    } else {
      const end = frame.offset + frame.length!;
      while (this.position < end) {
        const data = await this.bytes(Math.max(frame.offset, this.position), end);
        if (run !== this.run) return;
        this.screen.term.write(data);
        this.position = Math.max(frame.offset, this.position) + data.length;
      }
    }
    if (run !== this.run) return;
    this.frames.shift();
    this.time = frame.at;
  }

  /** Some bytes from an offset on; they are read ahead. */
  private async bytes(from: number, to: number): Promise<Uint8Array> {
    const { block } = this;
    if (from < block.from || from >= block.from + block.data.length) this.block = { from, data: await this.source.bytes(from, Math.max(to, from + BLOCK)) };
    return this.block.data.subarray(from - this.block.from, to - this.block.from);
  }

  /** Until xterm.js has drawn what was written. */
  private async drawn(): Promise<void> {
    await new Promise<void>((done) => this.screen.term.write("", done));
    this.into.dataset["offset"] = String(this.position);
  }

  private tell(): void {
    this.said = performance.now();
    this.progress({ offset: this.position, at: this.time, playing: this.playing, skipped: this.skipped });
  }
}
