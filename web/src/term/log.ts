// The log of a session: a window of lines from any offset, read both ways, drawn by xterm.js.
import { openScreen, type Screen } from "./screen";

export interface Line {
  stream: string;
  /** Where it begins; unknown in the transcript of a terminal. */
  offset: number | null;
  data: Uint8Array;
  isGap?: boolean;
}

export interface Page {
  lines: Line[];
  /** Cursors before the first line and after the last. */
  first: string;
  last: string;
  more: boolean;
}

export interface Source {
  /** The lines before a cursor, or the last of all. */
  before: (cursor: string | null, lines: number) => Promise<Page>;
  after: (cursor: string, lines: number) => Promise<Page>;
}

export interface LogOptions {
  source: Source;
  /** Whether a column shows which stream a line is of. */
  marked: boolean;
  following: (on: boolean) => void;
  picked: (line: Line) => void;
  failed: (error: unknown) => void;
}

const LINES = 5000;
const HALF = LINES / 2;
// Lines that wrap take several rows.
const ROWS = 100_000;
const NEWLINE = 10;
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;

export class LogView {
  private readonly screen: Screen;
  private readonly observer: ResizeObserver;
  private pages: Page[] = [];
  private lines: Line[] = [];
  private rows: number[] = [];
  // The stream whose line is not finished yet.
  private open: string | null = null;
  private work = Promise.resolve();
  private isClosed = false;
  private isDrawing = true;
  private wasAtEnd = true;
  private isFollowing = false;
  // Whether the window reaches the end, and whether there is something before it.
  private isWhole = false;
  private hasAbove = true;
  private picked: { dispose: () => void }[] = [];

  constructor(
    private readonly into: HTMLElement,
    private readonly options: LogOptions,
  ) {
    const refit = (): void => {
      fit.fit();
      if (term.cols !== cols) this.do(() => this.draw(this.isFollowing ? null : this.top));
      cols = term.cols;
    };
    this.screen = openScreen(into, { readOnly: true, refit });
    const { term, fit } = this.screen;
    term.options.convertEol = true;
    term.options.scrollback = ROWS;
    fit.fit();
    let cols = term.cols;
    this.observer = new ResizeObserver(refit);
    this.observer.observe(into);
    term.onRender(() => this.looked());
    term.attachCustomKeyEventHandler((event) => event.type !== "keydown" || this.key(event));
    into.addEventListener("click", (event) => this.click(event));
  }

  close(): void {
    this.isClosed = true;
    this.observer.disconnect();
    this.screen.close();
  }

  private do(work: () => Promise<void>): void {
    this.work = this.work.then(work).catch(this.options.failed);
  }

  /** Show the lines around a cursor, or the last ones and follow. */
  show(at: string | null): void {
    this.do(async () => {
      this.setFollowing(at === null);
      const { source } = this.options;
      const above = await source.before(at, at === null ? LINES : HALF);
      const wanted = above.lines.length;
      this.pages = [above];
      this.hasAbove = true;
      this.isWhole = at === null;
      if (at !== null) await this.readOn(HALF);
      await this.draw(at === null ? null : wanted);
      if (at === null || this.isClosed) return;
      const found = this.lines.findIndex((each, index) => index >= wanted && !each.isGap);
      this.mark(found < 0 ? this.lines.length - 1 : found);
    });
  }

  /** The session printed more. */
  grown(): void {
    this.isWhole = false;
    this.do(async () => {
      if (!this.isFollowing || !this.pages.length) return;
      await this.readOn(LINES);
      // So much was printed that the whole window would be new: show the last lines.
      if (!this.isWhole) return this.show(null);
      await this.drawOn(null);
      this.screen.term.scrollToBottom();
    });
  }

  /** Add the lines that follow the window. */
  private async readOn(lines: number): Promise<void> {
    for (let count = 0; count < lines; ) {
      const last = this.pages.at(-1)!;
      const page = await this.options.source.after(last.last, HALF);
      if (last.lines.length + page.lines.length <= HALF) Object.assign(last, { last: page.last, lines: [...last.lines, ...page.lines] });
      else this.pages.push(page);
      count += page.lines.length;
      this.isWhole = !page.more;
      if (this.isWhole || (!page.lines.length && last.last === page.last)) return;
    }
  }

  /** Keep one window: from its end (1) or from its beginning (-1). */
  private trim(keep: 1 | -1): void {
    const count = (): number => this.pages.reduce((sum, each) => sum + each.lines.length, 0);
    while (this.pages.length > 1 && count() - this.pages.at(keep > 0 ? 0 : -1)!.lines.length >= HALF && count() > LINES) {
      if (keep > 0) this.hasAbove = !!this.pages.shift();
      else this.isWhole = !this.pages.pop();
    }
  }

  private async up(): Promise<void> {
    const above = await this.options.source.before(this.pages[0]!.first, HALF);
    this.hasAbove = above.lines.length > 0 && above.first !== this.pages[0]!.first;
    if (!this.hasAbove) return;
    const top = this.top + above.lines.length;
    this.pages.unshift(above);
    this.trim(-1);
    await this.draw(top);
  }

  private async down(): Promise<void> {
    const { term } = this.screen;
    const line = this.lines[this.top];
    const row = term.buffer.active.viewportY;
    await this.readOn(HALF);
    // What was drawn stays as it is, with what is selected in it.
    if (await this.drawOn(line ?? null)) term.scrollToLine(row);
  }

  /** Draw what was read after the window: only that if it is short enough, else all again, with this line at the top. */
  private async drawOn(top: Line | null): Promise<boolean> {
    const all = this.pages.flatMap((each) => each.lines);
    const isShort = all.length <= LINES + HALF;
    if (isShort) await this.write(all.slice(this.lines.length));
    else {
      this.trim(1);
      await this.draw(top && Math.max(0, this.pages.flatMap((each) => each.lines).indexOf(top)));
    }
    return isShort;
  }

  /** Draw the window, with this line at the top, or its end. */
  private async draw(top: number | null): Promise<void> {
    const { term } = this.screen;
    // The answer arrives after the log was left.
    if (this.isClosed) return;
    this.isDrawing = true;
    this.picked.forEach((each) => each.dispose());
    term.reset();
    term.write("\x1b[?25l");
    this.lines = [];
    this.rows = [];
    this.open = null;
    await this.write(this.pages.flatMap((each) => each.lines));
    if (top === null || !this.rows.length) term.scrollToBottom();
    else term.scrollToLine(this.rows[Math.min(top, this.rows.length - 1)]!);
    this.wasAtEnd = this.isAtEnd;
    this.isDrawing = false;
  }

  /** Resolves when everything is drawn. A line of another stream never continues an unfinished one. */
  private async write(lines: Line[]): Promise<void> {
    const { term } = this.screen;
    for (const line of lines) {
      if (this.open !== null && this.open !== line.stream) term.write("\r\n");
      const begins = this.open !== line.stream;
      term.write("", () => this.rows.push(term.buffer.active.baseY + term.buffer.active.cursorY));
      if (begins && this.options.marked && !line.isGap) term.write(line.stream === "stderr" ? "\x1b[31m▏\x1b[39m" : " ");
      term.write(line.data);
      this.open = line.data.at(-1) === NEWLINE ? null : line.stream;
      this.lines.push(line);
    }
    await new Promise<void>((done) => term.write("", done));
  }

  private get isAtEnd(): boolean {
    const buffer = this.screen.term.buffer.active;
    return buffer.viewportY >= buffer.baseY;
  }

  /** The line at the top of what is in view. */
  private get top(): number {
    return this.lineAt(this.screen.term.buffer.active.viewportY);
  }

  private lineAt(row: number): number {
    const behind = this.rows.findIndex((each) => each > row);
    return (behind < 0 ? this.rows.length : behind) - 1;
  }

  /** After it was scrolled: follow, stop following, or read on. */
  private looked(): void {
    if (this.isDrawing) return;
    const isAtEnd = this.isAtEnd;
    const moved = isAtEnd !== this.wasAtEnd;
    this.wasAtEnd = isAtEnd;
    if (moved && !isAtEnd) this.setFollowing(false);
    const isAtTop = this.screen.term.buffer.active.viewportY === 0 && !isAtEnd;
    const further = isAtEnd && !this.isWhole ? this.down : isAtTop && this.hasAbove ? this.up : null;
    if (moved && isAtEnd && this.isWhole) this.setFollowing(true);
    if (!further || this.isFollowing) return;
    this.isDrawing = true;
    this.do(async () => {
      try {
        await further.call(this);
      } finally {
        this.isDrawing = false;
      }
    });
  }

  private setFollowing(on: boolean): void {
    if (this.isFollowing !== on) this.options.following(on);
    this.isFollowing = on;
  }

  private key(event: KeyboardEvent): boolean {
    const { term } = this.screen;
    const step = { ArrowUp: -1, ArrowDown: 1, PageUp: 1 - term.rows, PageDown: term.rows - 1, Home: -ROWS, End: ROWS }[event.key];
    if (step === undefined) return false;
    event.preventDefault();
    event.stopPropagation();
    term.scrollLines(step);
    return false;
  }

  private click(event: MouseEvent): void {
    const { term } = this.screen;
    const box = this.into.querySelector(".xterm-screen")!.getBoundingClientRect();
    const index = this.lineAt(Math.floor(((event.clientY - box.top) / box.height) * term.rows) + term.buffer.active.viewportY);
    const line = this.lines[index];
    if (this.isDrawing || term.hasSelection() || !line || line.offset === null || line.isGap) return;
    this.mark(index);
    this.options.picked(line);
  }

  /** Highlight a line. */
  private mark(index: number): void {
    const { term } = this.screen;
    this.picked.forEach((each) => each.dispose());
    const marker = term.registerMarker((this.rows[index] ?? 0) - term.buffer.active.baseY - term.buffer.active.cursorY);
    const decoration = term.registerDecoration({ marker, width: term.cols });
    decoration?.onRender((element) => element.classList.add("picked"));
    this.picked = decoration ? [decoration, marker] : [marker];
  }

  /** What is selected, else the whole window. */
  text(colours: boolean): string {
    const { term } = this.screen;
    const chosen = term.getSelectionPosition();
    if (chosen && !colours) return term.getSelection();
    const lines = chosen ? this.lines.slice(this.lineAt(chosen.start.y), this.lineAt(chosen.end.y) + 1) : this.lines;
    const text = lines.map((each) => new TextDecoder().decode(each.data)).join("");
    return colours ? text : text.replace(ESCAPES, "");
  }
}
