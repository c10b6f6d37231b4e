// A terminal session in the browser: attached over a WebSocket, resumed at the byte after the last one that was shown.
import type { Terminal } from "@xterm/xterm";
import type { Problem } from "../api";
import { tokenOf } from "./keys";
import { openScreen, type Screen } from "./screen";

export type Status =
  | { is: "connecting"; error?: unknown }
  | { is: "live"; role: Role }
  | { is: "resumed"; role: Role; at: number }
  | { is: "behind"; role: Role; bytes: number }
  | { is: "offline"; again?: number; error?: unknown }
  | { is: "ended" }
  | { is: "refused"; error: unknown };

export type Role = "control" | "observe";

/** Modifiers of the bar over a soft keyboard: for the next key, or until they are tapped again. */
export type Held = Record<"C" | "M" | "S", "off" | "once" | "locked">;
const AFTER = { off: "once", once: "locked", locked: "off" } as const;

export interface Unsent {
  id: number;
  text: string;
  message: object;
  state: "sent" | "late" | "broken";
}

export interface Options {
  /** The path of the WebSocket. */
  path: string;
  role: Role;
  reader: boolean;
  /** A ticket for one upgrade; rejects when the server refuses or is gone. */
  ticket: (role: Role) => Promise<string>;
  isFinal: (error: unknown) => boolean;
  /** Makes an error from a problem that the server sent. */
  refusal: (problem: Problem) => Error;
  /** A connection broke: another program may have the port now. */
  broke: () => void;
  status: (status: Status) => void;
  unsent: (inputs: Unsent[]) => void;
  gap: (from: number, to: number, reason: string) => void;
  size: (rows: number, cols: number, ours: boolean) => void;
  note: (text: string) => void;
  /** Whether some of the terminal is selected. */
  selected: (some: boolean) => void;
  /** A key after the prefix. */
  command: (key: string) => void;
  prefix: (on: boolean) => void;
  held: (modifiers: Held) => void;
}

type Message = Record<string, any>;

const CONTROL = 1;
const DATA = 2;
const LATE_MS = 1000;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;
const PONG_MS = 2000;
const RESIZE_MS = 100;
const BEHIND_BYTES = 65_536;
// How long it says that it resumed.
const RESUMED_MS = 3000;
// This many characters fit into one message, however they are escaped.
const PIECE_CHARACTERS = 128 << 10;
const WHEEL_PIXELS = 40;
const CLIPBOARD_BYTES = 64 << 10;

export class Attachment {
  private readonly screen: Screen;
  private socket: WebSocket | null = null;
  private role: Role;
  // The connection in use: what an earlier one still delivers is dropped.
  private attempt = 0;
  private heard = 0;
  // The offset after the last byte that xterm.js has shown; null before the first screen.
  private shown: number | null = null;
  private end = 0;
  private wait = 0;
  private timer = 0;
  private checking = 0;
  private isOver = false;
  private hasEnded = false;
  private hasBegun = false;
  // The last problem that the server reported on this connection, and why the connection before it ended.
  private reported: (Problem & { code: string }) | null = null;
  private trouble: unknown = null;
  // Whether this session may put text into the clipboard (OSC 52).
  private writesClipboard = false;
  private readonly inputs = new Map<number, Unsent>();
  private next = 1;
  private modes: { mouse?: string | null; alternateScreen?: boolean; kittyKeyboard?: number } = {};
  private isPrefixed = false;
  private held: Held = { C: "off", M: "off", S: "off" };
  private said = "";
  private resumedUntil = 0;
  private fits = true;
  private resizing = 0;
  private touched = false;
  // The size that was asked for last.
  private asked = "";
  private isFocused = false;
  private readonly stop = new AbortController();
  private readonly observer: ResizeObserver;

  constructor(
    into: HTMLElement,
    private readonly options: Options,
  ) {
    this.role = options.role;
    this.screen = openScreen(into, { readOnly: false, refit: () => this.refit() });
    const { term } = this.screen;
    term.options.screenReaderMode = options.reader;
    term.attachCustomKeyEventHandler((event) => {
      this.key(event);
      return false;
    });
    term.attachCustomWheelEventHandler((event) => this.wheel(event));
    term.onData((text) => this.report(text));
    term.onBinary((text) => this.report(text));
    term.parser.registerOscHandler(52, (text) => this.clipboard(text));
    term.onSelectionChange(() => options.selected(term.hasSelection()));
    const { signal } = this.stop;
    const on = <K extends keyof HTMLElementEventMap>(name: K, then: (event: HTMLElementEventMap[K]) => void): void =>
      into.addEventListener(name, then, { capture: true, signal });
    on("beforeinput", (event) => this.typed(event));
    on("compositionend", (event) => this.text(event.data));
    on("paste", (event) => this.paste(event, event.clipboardData));
    on("drop", (event) => this.paste(event, event.dataTransfer));
    on("dragover", (event) => event.preventDefault());
    on("focusin", () => this.focus(true));
    on("focusout", () => this.focus(false));
    for (const event of ["online", "pageshow"]) addEventListener(event, () => this.wake(), { signal });
    addEventListener("offline", () => this.isOver || this.say({ is: "offline" }), { signal });
    document.addEventListener("visibilitychange", () => this.visible(), { signal });
    this.observer = new ResizeObserver(() => this.refit());
    this.observer.observe(into);
    // For tests and for the browser's developer tools.
    Object.assign(into, { attachment: this });
    void this.connect();
  }

  get terminal(): Terminal {
    return this.screen.term;
  }

  get offset(): number {
    return this.shown ?? 0;
  }

  close(): void {
    this.isOver = true;
    this.attempt++;
    this.stop.abort();
    this.observer.disconnect();
    clearTimeout(this.timer);
    clearTimeout(this.checking);
    clearTimeout(this.resizing);
    hangUp(this.socket);
    this.screen.close();
  }

  toggleFit(): void {
    this.fits = !this.fits;
    this.resized(this.terminal.rows, this.terminal.cols);
    this.sendSize();
  }

  setReader(on: boolean): void {
    this.terminal.options.screenReaderMode = on;
  }

  setClipboard(on: boolean): void {
    this.writesClipboard = on;
  }

  /** Control is given up on the connection there is; to take it needs another ticket. */
  setRole(role: Role): void {
    if (role === this.role) return;
    this.role = role;
    this.touched = this.isFocused;
    this.asked = "";
    if (role === "control" || !this.send({ type: "observe" })) void this.connect();
    else this.say({ is: "live", role });
  }

  repaint(): void {
    this.attempt++;
    this.shown = null;
    void this.connect();
  }

  /** How far the log is, as the server says elsewhere. */
  grown(end: number): void {
    this.end = Math.max(this.end, end);
  }

  /** Press or release a modifier of the bar. */
  hold(name: keyof Held): void {
    this.held = { ...this.held, [name]: AFTER[this.held[name]] };
    this.options.held(this.held);
  }

  /** A key with the modifiers that are held, unless it has them itself. */
  press(key: string): void {
    const names = (["C", "M", "S"] as const).filter((name) => this.held[name] !== "off" && !key.includes(`${name}-`));
    this.sendKeys([names.map((name) => `${name}-`).join("") + key]);
    for (const name of names) if (this.held[name] === "once") this.held = { ...this.held, [name]: "off" };
    this.options.held(this.held);
  }

  sendKeys(keys: string[]): void {
    this.input({ keys }, keys.join(" "));
  }

  submit(text: string): void {
    this.input({ submit: text }, text);
  }

  sendAgain(ids: number[]): void {
    const again = ids.map((id) => this.inputs.get(id));
    this.forget(ids);
    for (const input of again) if (input) this.input(input.message, input.text);
  }

  forget(ids: number[]): void {
    for (const id of ids) this.inputs.delete(id);
    this.listUnsent();
  }

  // The connection

  private async connect(): Promise<void> {
    const attempt = ++this.attempt;
    clearTimeout(this.timer);
    clearTimeout(this.checking);
    hangUp(this.socket);
    this.disconnected();
    this.say({ is: "connecting", error: this.trouble });
    let ticket: string;
    try {
      ticket = await this.options.ticket(this.role);
    } catch (error) {
      if (attempt === this.attempt) this.failed(error, this.options.isFinal(error));
      return;
    }
    // What was received is shown before the rest is asked for.
    await new Promise<void>((done) => this.terminal.write("", done));
    if (attempt !== this.attempt) return;
    const url = new URL(this.options.path, location.href);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    url.searchParams.set("ticket", ticket);
    url.searchParams.set("visible", String(document.visibilityState === "visible"));
    if (this.shown !== null) url.searchParams.set("from", String(this.shown));
    const socket = new WebSocket(url, ["holdfast.v1"]);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.reported = null;
    this.hasBegun = false;
    socket.onmessage = (event) => attempt === this.attempt && this.message(new Uint8Array(event.data as ArrayBuffer));
    socket.onclose = (event) => attempt === this.attempt && this.lost(event);
  }

  private disconnected(): void {
    this.socket = null;
    for (const input of this.inputs.values()) input.state = "broken";
    this.listUnsent();
  }

  private lost(event: CloseEvent): void {
    this.disconnected();
    if (this.isOver) return;
    this.options.broke();
    if (event.code === 4404) this.failed("The session was removed.", true);
    else if (event.code === 1008) this.failed("The token of this page was revoked.", true);
    else this.failed(this.reported?.code === event.reason ? this.options.refusal(this.reported) : null, false);
  }

  private failed(error: unknown, isFinal: boolean): void {
    this.isOver ||= isFinal;
    this.trouble = error;
    if (isFinal) return this.say({ is: "refused", error });
    const pause = this.wait * (0.75 + Math.random() / 2);
    this.wait = Math.min(Math.max(this.wait * 2, FIRST_WAIT_MS), LONGEST_WAIT_MS);
    this.say({ is: "offline", again: Date.now() + pause, error });
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.connect(), pause);
  }

  /** Back from sleep or another network: at once, and on a new connection if the one there is does not answer. */
  private wake(): void {
    if (this.isOver) return;
    if (!this.send({ type: "ping", t: 0 })) return void this.connect();
    const { heard } = this;
    clearTimeout(this.checking);
    this.checking = window.setTimeout(() => this.heard === heard && void this.connect(), PONG_MS);
  }

  private visible(): void {
    if (document.visibilityState === "visible") this.wake();
    this.sendSize();
  }

  private say(status: Status): void {
    const text = JSON.stringify(status);
    if (text === this.said) return;
    this.said = text;
    this.options.status(status);
  }

  // From the session

  private message(frame: Uint8Array): void {
    this.heard++;
    if (frame[0] === DATA) {
      const offset = Number(new DataView(frame.buffer, 1, 8).getBigUint64(0));
      this.write(frame.subarray(9), offset);
    } else if (frame[0] === CONTROL) {
      this.control(JSON.parse(new TextDecoder().decode(frame.subarray(1))));
    }
  }

  private write(data: Uint8Array, offset: number): void {
    const { attempt } = this;
    this.end = Math.max(this.end, offset + data.length);
    this.terminal.write(data, () => {
      if (this.shown === null) return;
      this.shown = offset + data.length;
      if (attempt !== this.attempt) return;
      this.send({ type: "ack", offset: this.shown });
      const bytes = this.end - this.shown;
      if (this.hasEnded) return;
      if (bytes > BEHIND_BYTES) this.say({ is: "behind", role: this.role, bytes: bytes - (bytes % BEHIND_BYTES) });
      else if (Date.now() > this.resumedUntil) this.say({ is: "live", role: this.role });
    });
  }

  private control(message: Message): void {
    switch (message["type"]) {
      case "init":
        return this.begin(message);
      case "pong":
        return this.hasEnded ? undefined : this.say({ is: "live", role: this.role });
      case "mode":
        this.modes = message["modes"];
        return;
      case "size":
        // After what was printed before it, which xterm.js may not have drawn yet.
        return this.terminal.write("", () => this.resized(message["rows"], message["cols"]));
      case "gap":
        return this.options.gap(message["from"], message["to"], message["reason"]);
      case "written":
        return this.written(message);
      case "error":
        this.reported = message as Problem & { code: string };
        return;
      case "exit":
        this.hasEnded = true;
        this.isOver = !message["output_open"];
        return this.terminal.write("", () => this.say({ is: "ended" }));
    }
  }

  private begin(init: Message): void {
    this.wait = 0;
    this.trouble = null;
    this.modes = init["modes"] ?? {};
    this.end = Math.max(this.end, init["end"]);
    const { term } = this.screen;
    const [rows, cols] = init["size"] as [number, number];
    if (init["resumed"]) {
      this.resumedUntil = Date.now() + RESUMED_MS;
      this.say({ is: "resumed", role: this.role, at: init["at"] });
      setTimeout(() => this.send({ type: "ping", t: 0 }), RESUMED_MS);
    } else {
      // In the order in which xterm.js still has to draw. After a gap on the same connection the lines above stay.
      if (!this.hasBegun) term.write("\x1bc");
      term.write("", () => this.resized(rows, cols));
      term.write(fromBase64(init["screen"] ?? ""), () => (this.shown = init["at"]));
      this.say({ is: "live", role: this.role });
    }
    this.hasBegun = true;
    this.sendSize();
    if (this.role === "control" && this.isFocused) this.send({ type: "focus", focused: true });
  }

  private written({ id, problem }: Message): void {
    const input = this.inputs.get(id);
    if (!input) return;
    if (problem) this.options.note(`Not typed: ${problem.detail}`);
    // A key that has no bytes now will have none later.
    if (problem && !("keys" in input.message)) input.state = "broken";
    else this.inputs.delete(id);
    if (input.state !== "sent") this.listUnsent();
  }

  // Sizes

  private resized(rows: number, cols: number): void {
    this.terminal.resize(cols, rows);
    // The text area stays at the cursor's old row, which may be below the last row now, until the cursor moves.
    this.terminal.textarea!.style.top = "0";
    const fit = this.screen.fit.proposeDimensions();
    // Rounding of their width changes by one how many columns fit.
    const isOurs = this.asked === `${rows} ${cols}` || (fit?.rows === rows && fit.cols === cols);
    this.options.size(rows, cols, this.fits && isOurs);
  }

  private refit(): void {
    clearTimeout(this.resizing);
    this.resizing = window.setTimeout(() => {
      this.resized(this.terminal.rows, this.terminal.cols);
      this.sendSize();
    }, RESIZE_MS);
  }

  /** Only a visible terminal in control that was focused once sizes the session. */
  private sendSize(): void {
    const wanted = this.screen.fit.proposeDimensions();
    const visible = document.visibilityState === "visible";
    if (this.role !== "control" || !this.touched || !this.fits || !wanted?.rows || !wanted.cols) return;
    this.asked = `${wanted.rows} ${wanted.cols}`;
    this.send({ type: "resize", rows: wanted.rows, cols: wanted.cols, visible });
  }

  /** The runner makes the report of it, where the program asked for one. */
  private focus(on: boolean): void {
    const first = on && !this.touched;
    this.isFocused = on;
    this.touched ||= on;
    if (first) this.sendSize();
    if (this.role === "control") this.send({ type: "focus", focused: on });
  }

  // Input

  private key(event: KeyboardEvent): void {
    if (event.type !== "keydown" || ["Control", "Shift", "Alt", "Meta"].includes(event.key)) return;
    const isPrefix = event.ctrlKey && !event.altKey && event.key === "]";
    if (this.isPrefixed) {
      this.setPrefix(false);
      // The browser itself moves the focus.
      if (event.key === "Tab") return;
      event.preventDefault();
      if (isPrefix) this.sendKeys(["C-]"]);
      else this.options.command(event.key);
      return;
    }
    // The browser's own copy and paste.
    const isClipboard = event.ctrlKey && event.shiftKey && ["C", "V"].includes(event.key);
    const token = isClipboard ? null : tokenOf(event, this.modes.kittyKeyboard);
    if (token === null) return;
    event.preventDefault();
    if (isPrefix) this.setPrefix(true);
    else this.press(token);
  }

  private setPrefix(on: boolean): void {
    this.isPrefixed = on;
    this.options.prefix(on);
  }

  /** Text that a key, a soft keyboard, an emoji picker or dictation puts in; a composition is sent when it ends. */
  private typed(event: InputEvent): void {
    if (event.isComposing || event.inputType === "insertCompositionText") return;
    event.preventDefault();
    if (event.inputType === "deleteContentBackward") this.press("Backspace");
    else if (event.inputType === "insertLineBreak") this.press("Enter");
    else if (event.data?.length === 1 && (this.held.C !== "off" || this.held.M !== "off")) this.press(event.data);
    else if (event.data) this.text(event.data);
  }

  private text(text: string): void {
    if (text) this.input({ data: text }, text);
  }

  /** Mouse reports while they are asked for. Anything else is an answer of the emulator, or text that was sent already. */
  private report(text: string): void {
    if (this.modes.mouse && this.role === "control" && this.socket && /^\x1b\[[<M]/.test(text)) this.input({ b64: btoa(text) }, "a click");
  }

  /** What a program puts into the clipboard. Nothing is ever read from it. */
  private clipboard(text: string): boolean {
    const { note } = this.options;
    if (!this.writesClipboard || !this.isFocused) return true;
    let data: Uint8Array;
    try {
      data = fromBase64(text.slice(text.indexOf(";") + 1));
    } catch {
      return true; // a query, or no text
    }
    if (data.length > CLIPBOARD_BYTES) note("The session wanted to put more than 64 KiB into the clipboard: refused.");
    else {
      navigator.clipboard.writeText(new TextDecoder().decode(data)).then(
        () => note(`The session put ${data.length} bytes into the clipboard.`),
        (error) => note(`The clipboard was not written: ${error}`),
      );
    }
    return true;
  }

  /** A program with a screen of its own that takes no mouse gets the wheel as arrow keys. */
  private wheel(event: WheelEvent): boolean {
    if (!this.modes.alternateScreen || this.modes.mouse || this.role !== "control") return true;
    const steps = event.deltaMode ? event.deltaY : event.deltaY / WHEEL_PIXELS;
    event.preventDefault();
    if (steps) this.sendKeys(Array<string>(Math.min(10, Math.ceil(Math.abs(steps)))).fill(steps < 0 ? "Up" : "Down"));
    return false;
  }

  private paste(event: Event, from: DataTransfer | null): void {
    event.preventDefault();
    event.stopPropagation();
    const text = from?.getData("text/plain") ?? "";
    if (text.length <= PIECE_CHARACTERS) return text ? this.input({ paste: text }, text) : undefined;
    for (let begin = 0, end; begin < text.length; begin = end) {
      end = begin + PIECE_CHARACTERS;
      // Neither a line end nor a character in two halves.
      if (/^(\r\n|[\ud800-\udbff][\udc00-\udfff])$/.test(text.slice(end - 1, end + 1))) end++;
      const piece = begin === 0 ? "first" : end < text.length ? "middle" : "last";
      this.input({ paste: text.slice(begin, end), piece }, text.slice(begin, end));
    }
  }

  private input(message: object, text: string): void {
    if (this.role !== "control") return this.options.note("You are observing: nothing is sent.");
    const input: Unsent = { id: this.next++, text, message, state: "sent" };
    this.inputs.set(input.id, input);
    this.terminal.scrollToBottom();
    if (!this.send({ type: "input", id: input.id, ...message })) {
      input.state = "broken";
      return this.listUnsent();
    }
    setTimeout(() => {
      if (input.state !== "sent" || !this.inputs.has(input.id)) return;
      input.state = "late";
      this.listUnsent();
    }, LATE_MS);
  }

  private listUnsent(): void {
    this.options.unsent([...this.inputs.values()].filter((each) => each.state !== "sent"));
  }

  private send(message: object): boolean {
    if (this.socket?.readyState !== WebSocket.OPEN || !this.hasBegun) return false;
    const text = new TextEncoder().encode(JSON.stringify(message));
    const frame = new Uint8Array(text.length + 1);
    frame[0] = CONTROL;
    frame.set(text, 1);
    this.socket.send(frame);
    return true;
  }
}

/** A socket that is still connecting is closed when it is open: before, the browser reports an error. */
function hangUp(socket: WebSocket | null): void {
  if (socket?.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close(1000);
  else socket?.close(1000);
}

function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}
