// Fingers on a terminal: one scrolls, a long press selects, two change the size of the font.
import type { Terminal } from "@xterm/xterm";

const LONG_PRESS_MS = 500;
// A finger that moves less counts as still.
const STILL_PX = 8;
const SMALLEST = 8;
const LARGEST = 32;

export function touchable(term: Terminal, into: HTMLElement): void {
  let before: Touch | null = null;
  let timer = 0;
  // The word where a selection began: its first and last cell, counted from the beginning of the buffer.
  let anchor: [number, number] | null = null;
  let pinch: { apart: number; font: number } | null = null;
  // Pixels scrolled that do not make a whole row yet.
  let moved = 0;

  const screen = (): DOMRect => into.querySelector(".xterm-screen")!.getBoundingClientRect();
  const cellAt = ({ clientX, clientY }: Touch): number => {
    const box = screen();
    const within = (place: number, most: number): number => Math.max(0, Math.min(most - 1, Math.floor(place * most)));
    const row = within((clientY - box.top) / box.height, term.rows) + term.buffer.active.viewportY;
    return row * term.cols + within((clientX - box.left) / box.width, term.cols);
  };
  const select = (first: number, last: number): void => term.select(first % term.cols, Math.floor(first / term.cols), last - first + 1);
  /** The first and the last cell of the word there. */
  const wordAt = (cell: number): [number, number] => {
    const line = term.buffer.active.getLine(Math.floor(cell / term.cols));
    const isBlank = (col: number): boolean => !line?.getCell(col)?.getChars().trim() && line?.getCell(col)?.getWidth() !== 0;
    const row = cell - (cell % term.cols);
    let [from, to] = [cell - row, cell - row];
    while (from > 0 && !isBlank(from - 1)) from--;
    while (to < term.cols - 1 && !isBlank(to + 1)) to++;
    return [row + from, row + to];
  };
  const scroll = (dx: number, dy: number, at: Touch): void => {
    const { scrollTop } = into;
    into.scrollLeft -= dx;
    into.scrollTop -= dy;
    // When the box cannot scroll, the terminal does: its lines, or a wheel event if a program has the screen or the mouse.
    if (into.scrollTop !== scrollTop) return;
    const height = screen().height / term.rows;
    moved -= dy;
    const lines = Math.trunc(moved / height);
    moved -= lines * height;
    const isOurs = term.buffer.active.type === "normal" && term.modes.mouseTrackingMode === "none";
    if (lines && isOurs) term.scrollLines(lines);
    else if (lines) {
      const { clientX, clientY, target } = at;
      target.dispatchEvent(new WheelEvent("wheel", { deltaY: lines, deltaMode: WheelEvent.DOM_DELTA_LINE, clientX, clientY, bubbles: true, cancelable: true }));
    }
  };
  const apart = ([one, other]: TouchList | Touch[]): number => Math.hypot(one!.clientX - other!.clientX, one!.clientY - other!.clientY);

  const start = (event: TouchEvent): void => {
    clearTimeout(timer);
    const [first] = event.touches;
    before = first!;
    anchor = null;
    moved = 0;
    pinch = event.touches.length === 2 ? { apart: apart(event.touches), font: term.options.fontSize! } : null;
    if (event.touches.length > 1) return;
    timer = window.setTimeout(() => {
      anchor = wordAt(cellAt(first!));
      select(...anchor);
    }, LONG_PRESS_MS);
  };
  const move = (event: TouchEvent): void => {
    const [at] = event.touches;
    event.preventDefault();
    if (pinch && event.touches.length === 2) {
      const size = Math.round(Math.max(SMALLEST, Math.min(LARGEST, (pinch.font * apart(event.touches)) / pinch.apart)));
      localStorage.setItem("font", String(size));
      dispatchEvent(new Event("settings"));
    } else if (anchor) {
      const cell = cellAt(at!);
      select(Math.min(anchor[0], cell), Math.max(anchor[1], cell));
    } else if (!pinch && before && (!timer || apart([at!, before]) > STILL_PX)) {
      clearTimeout(timer);
      timer = 0;
      scroll(at!.clientX - before.clientX, at!.clientY - before.clientY, at!);
      before = at!;
    }
  };
  const end = (event: TouchEvent): void => {
    clearTimeout(timer);
    timer = 0;
    // Prevents the click that would follow, which would clear the selection.
    if (anchor || pinch) event.preventDefault();
  };
  into.addEventListener("touchstart", start, { passive: true });
  into.addEventListener("touchmove", move, { passive: false });
  for (const name of ["touchend", "touchcancel"] as const) into.addEventListener(name, end);
  // A long press selects and opens no menu.
  into.addEventListener("contextmenu", (event) => (timer || anchor) && event.preventDefault());
}
