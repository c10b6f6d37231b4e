// A key event as the token that the runner encodes, or null when it is text, which goes out as text.

const NAMED: Record<string, string> = {
  Enter: "Enter",
  Tab: "Tab",
  Escape: "Escape",
  Backspace: "Backspace",
  ArrowUp: "Up",
  ArrowDown: "Down",
  ArrowLeft: "Left",
  ArrowRight: "Right",
  Home: "Home",
  End: "End",
  Insert: "Insert",
  Delete: "Delete",
  PageUp: "PageUp",
  PageDown: "PageDown",
};

const KEYPAD: Record<string, string> = {
  NumpadEnter: "KPEnter",
  NumpadAdd: "KP+",
  NumpadSubtract: "KP-",
  NumpadMultiply: "KP*",
  NumpadDivide: "KP/",
  NumpadDecimal: "KP.",
  NumpadEqual: "KP=",
};

const ALL_KEYS = 8;
const MAC = navigator.platform.startsWith("Mac");

/** `kitty` are the flags of its keyboard protocol: with one of them text is sent by key too. */
export function tokenOf(event: KeyboardEvent, kitty = 0): string | null {
  if (event.isComposing || event.key === "Process" || event.key === "Dead" || event.keyCode === 229) return null;
  const { ctrlKey: ctrl, altKey: alt, shiftKey: shift, metaKey: meta, key, code } = event;
  // The browser's own, and text on the third layer of a keyboard.
  if (meta || event.getModifierState("AltGraph")) return null;
  const prefix = (ctrl ? "C-" : "") + (alt ? "M-" : "");
  const keypad = KEYPAD[code] ?? (/^Numpad\d$/.test(code) ? `KP${code.slice(6)}` : undefined);
  if (keypad && !prefix && !shift && (key.length === 1 || key === "Enter")) return keypad;
  const name = NAMED[key] ?? (/^F([1-9]|1\d|2[0-4])$/.test(key) ? key : undefined);
  if (name) return prefix + (shift ? "S-" : "") + name;
  if ([...key].length !== 1 || (!ctrl && !(alt && !MAC) && !(kitty & ALL_KEYS))) return null;
  // A letter says nothing of the shift that Ctrl goes with; of other characters the shift is a part.
  const isLetter = key.toLowerCase() !== key.toUpperCase();
  return prefix + (key === " " ? (shift ? "S-" : "") + "Space" : !ctrl || !isLetter ? key : (shift ? "S-" : "") + key.toLowerCase());
}
