// A terminal session, attached.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, go, listPath, setQuery } from "./address";
import { can, distrust, Gone, may, post, Refused, sessionPath } from "./api";
import { useCell } from "./cell";
import { dialog, openPalette, terminalActions } from "./dialogs";
import { bytes, isLive, type Session } from "./model";
import { nextThatAsks } from "./sessions";
import type { Attachment, Held, Role, Status, Unsent } from "./term/attach";
import { State, Text, Trouble, useNow } from "./ui";

// Keys after the prefix that are also in the palette, and keys that the browser keeps for itself.
const COMMANDS: [key: string, text: string][] = [
  ["b", "Go back in time"],
  ["l", "Show the live screen"],
  ["o", "Observe only"],
  ["r", "Redraw the screen"],
  ["z", "Fit the session to this window, or show its actual size"],
];
const BROWSER_KEYS = ["C-w", "C-t", "C-n"];
// How long the keys after the prefix are listed.
const PREFIX_MS = 2000;

export function LiveTerminal({ session }: { session: Session }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [status, setStatus] = useState<Status>({ is: "connecting" });
  const [unsent, setUnsent] = useState<Unsent[]>([]);
  const [gap, setGap] = useState<{ from: number; text: string } | null>(null);
  const [size, setSize] = useState("");
  const [prefix, setPrefix] = useState(false);
  const [held, setHeld] = useState<Held>({ C: "off", M: "off", S: "off" });
  const asked = useCell(address).query.has("observe") ? "observe" : "control";
  const role: Role = may("control") ? asked : "observe";
  const [reader, setReader] = useState(localStorage.getItem("reader") === "on");
  const [note, setNote] = useState("");
  const [selected, setSelected] = useState(false);
  const [clipboard, setClipboard] = useState(false);
  const attachment = useRef<Attachment | null>(null);
  const observe = (next: Role): void => setQuery({ observe: next === "observe" ? "1" : "" });
  useEffect(() => {
    setNote("");
    attachment.current?.setRole(role);
  }, [role]);
  const read = (on: boolean): void => {
    setReader(on);
    localStorage.setItem("reader", on ? "on" : "off");
    attachment.current?.setReader(on);
  };
  const share = (on: boolean): void => {
    setClipboard(on);
    attachment.current?.setClipboard(on);
  };
  const command = (key: string): void => {
    const attached = attachment.current!;
    if (key === "d") go(listPath());
    else if (key === "o") observe("observe");
    else if (key === "r") attached.repaint();
    else if (key === "z") attached.toggleFit();
    else if (key === "l") (attached.terminal.scrollToBottom(), setQuery({ at: "" }));
    else if (key === "/") setQuery({ find: "1" });
    else if (key === "b") setQuery({ at: String(attached.offset) }, "push");
    else if (key === "?") dialog.set({ is: "keys" });
    else if (key === "k") openPalette(session);
    else if (key === "n" || key === "p") nextThatAsks(session.id, key === "n" ? 1 : -1);
    else if (key === "Escape") document.querySelector<HTMLElement>("nav button")?.focus();
  };
  useEffect(() => {
    let isOpen = true;
    void import("./term").then((term) => {
      if (!isOpen || !box.current) return;
      attachment.current = new term.Attachment(box.current, {
        path: sessionPath(session.id, "/attach"),
        role,
        reader,
        ticket: async (wanted) => (await post<{ ticket: string }>(sessionPath(session.id, "/tickets"), { role: wanted })).ticket,
        isFinal: (error) => error instanceof Refused && error.problem.status >= 400 && error.problem.status < 429,
        refusal: (problem) => new Refused(problem),
        broke: distrust,
        status: setStatus,
        unsent: setUnsent,
        gap: (from, to, reason) => setGap({ from, text: `${bytes(to - from)} ${reason}: show them in the log` }),
        size: (rows, cols, ours) => setSize(ours ? "" : `${cols}×${rows}`),
        note: setNote,
        selected: setSelected,
        command,
        prefix: setPrefix,
        held: setHeld,
      });
      attachment.current.terminal.focus();
      terminalActions.set([
        ...COMMANDS.map(([key, text]) => ({ text, run: () => command(key) })),
        { text: "Let this session write to the clipboard", run: () => share(true) },
        ...(can("control") ? BROWSER_KEYS.map((key) => ({ text: `Type ${key.replace("C-", "Ctrl-")} in the terminal`, run: () => attachment.current?.sendKeys([key]) })) : []),
      ]);
    });
    return () => {
      isOpen = false;
      terminalActions.set([]);
      attachment.current?.close();
      attachment.current = null;
    };
  }, [session.id]);
  useEffect(() => attachment.current?.grown(session.ends["tty"] ?? 0));
  useEffect(() => {
    const timer = setTimeout(() => setPrefix(false), PREFIX_MS);
    return () => clearTimeout(timer);
  }, [prefix]);
  // The line below already says that the server is gone.
  const error = "error" in status && !(status.error instanceof Gone) ? status.error : null;
  return (
    <section class="terminal-box">
      <div class="bar">
        <Connection status={status} />
        {size && <span class="dim">{size}</span>}
        {gap && (
          <button class="gap" onClick={() => setQuery({ tab: "log", at: String(gap.from) }, "push")}>
            {gap.text}
          </button>
        )}
        {selected && <button onClick={() => navigator.clipboard.writeText(attachment.current!.terminal.getSelection()).catch((error) => setNote(String(error)))}>Copy</button>}
        {clipboard && <button onClick={() => share(false)}>Clipboard: on</button>}
        <label class="check right">
          <input type="checkbox" checked={reader} onChange={(event) => read(event.currentTarget.checked)} />
          Screen reader
        </label>
        {can("control") && isLive(session) && (
          <button onClick={() => observe(role === "control" ? "observe" : "control")}>{role === "control" ? "Observe" : "Take control"}</button>
        )}
      </div>
      {/* Over the terminal, whose size does not change with what is said. */}
      <div class="over">
        {prefix && <p class="prefix">d list · o observe · r repaint · z size · b back · l live · / find · n p asking · k palette · ? keys · Esc Tab leave · Ctrl-] itself</p>}
        {note && (
          <p class="unsent" role="status">
            <Text>{note}</Text>
            <button onClick={() => setNote("")}>Close</button>
          </p>
        )}
        <Trouble error={error} />
        <NotTaken inputs={unsent} secret={session.needs_input?.secret ?? false} attachment={() => attachment.current} />
      </div>
      {!isLive(session) && <TheEnd session={session} />}
      <div class="terminal" ref={box} />
      {role === "control" && isLive(session) && <TouchBar session={session} held={held} attachment={() => attachment.current} />}
    </section>
  );
}

/** Inputs that the session has not taken: text typed in a row is one of them. */
function NotTaken({ inputs, secret, attachment }: { inputs: Unsent[]; secret: boolean; attachment: () => Attachment | null }): JSX.Element | null {
  if (!inputs.length) return null;
  const runs: Unsent[][] = [];
  for (const input of inputs) {
    const last = runs.at(-1);
    if (last?.at(-1)!.state === input.state) last!.push(input);
    else runs.push([input]);
  }
  return (
    <div role="status">
      {runs.map((run) => {
        const ids = run.map((each) => each.id);
        const isBroken = run[0]!.state === "broken";
        return (
          <p class="unsent" key={ids[0]}>
            {isBroken ? "Not confirmed: " : "Not accepted yet: "}
            <Text>{secret ? "a secret" : run.map((each) => ("data" in each.message ? each.text : ` ${each.text} `)).join("")}</Text>
            {isBroken && <button onClick={() => attachment()?.sendAgain(ids)}>Send again</button>}
            {isBroken && <button onClick={() => attachment()?.forget(ids)}>Forget</button>}
          </p>
        );
      })}
    </div>
  );
}

/** What is known about the end, above the last screen. */
function TheEnd({ session }: { session: Session }): JSX.Element {
  const { exit } = session;
  const facts = exit ? [`cause ${exit.cause}`, exit.by && `by ${exit.by}`, exit.survivors.length && `${exit.survivors.length} still running`] : [];
  return (
    <p class="unsent ended">
      <State session={session} now={Date.now()} /> <Text>{facts.filter(Boolean).join(", ")}</Text>
      <button onClick={() => setQuery({ at: String(session.dropped_before["tty"] ?? 0) }, "push")}>Replay</button>
    </p>
  );
}

function Connection({ status }: { status: Status }): JSX.Element {
  const now = useNow();
  return <span class={`connection ${status.is}`}>{words(status, now)}</span>;
}

function words(status: Status, now: number): string {
  switch (status.is) {
    case "live":
      return status.role === "observe" ? "observing" : "live";
    case "resumed":
      return `${status.role === "observe" ? "observing, " : ""}resumed at ${status.at}`;
    case "behind":
      return `${bytes(status.bytes)} behind`;
    case "offline":
      return status.again ? `offline, again in ${Math.max(0, Math.ceil((status.again - now) / 1000))} s` : "offline";
    case "refused":
      return "not attached";
    default:
      return status.is;
  }
}

const BAR = ["Escape", "Tab", "Enter", "Up", "Down", "Left", "Right", "Home", "End", "PageUp", "PageDown"];
const SHORT: Record<string, string> = { Escape: "Esc", Up: "↑", Down: "↓", Left: "←", Right: "→", PageUp: "PgUp", PageDown: "PgDn" };
const FUNCTION_KEYS = Array.from({ length: 12 }, (_, index) => `F${index + 1}`);

/** Above the soft keyboard: keys that it does not have, and a field whose text is sent with Enter. */
function TouchBar({ session, held, attachment }: { session: Session; held: Held; attachment: () => Attachment | null }): JSX.Element {
  const draft = `draft:${session.id}`;
  const secret = session.needs_input?.secret ?? false;
  const [text, setText] = useState(localStorage.getItem(draft) ?? "");
  const [more, setMore] = useState(false);
  // A secret is not kept as a draft, nor is text typed before the question was detected.
  useEffect(() => {
    if (!secret) return;
    localStorage.removeItem(draft);
    setText("");
    return () => setText("");
  }, [secret]);
  const change = (value: string): void => {
    // A letter typed while Ctrl or Alt sticks is that key, not text.
    if (value.length === text.length + 1 && (held.C !== "off" || held.M !== "off")) return attachment()?.press(value.at(-1)!);
    setText(value);
    if (!secret) localStorage.setItem(draft, value);
  };
  const send = (event: SubmitEvent): void => {
    event.preventDefault();
    attachment()?.submit(text);
    change("");
    localStorage.removeItem(draft);
  };
  return (
    <div class="touch">
      {/* The focus, and with it the soft keyboard, stays where it is. */}
      <div class="keys-row" onMouseDown={(event) => event.preventDefault()}>
        {(["C", "M", "S"] as const).map((name) => (
          <button key={name} aria-pressed={held[name] !== "off"} class={held[name]} onClick={() => attachment()?.hold(name)}>
            {{ C: "Ctrl", M: "Alt", S: "Shift" }[name]}
          </button>
        ))}
        {(more ? FUNCTION_KEYS : BAR).map((key) => (
          <button key={key} onClick={() => attachment()?.press(key)}>
            {SHORT[key] ?? key}
          </button>
        ))}
        {["C-c", "C-d", ...(more ? BROWSER_KEYS : [])].map((key) => (
          <button key={key} onClick={() => attachment()?.sendKeys([key])}>
            {key}
          </button>
        ))}
        <button aria-pressed={more} onClick={() => setMore(!more)}>
          Fn
        </button>
      </div>
      <form onSubmit={send}>
        <input type={(secret ? "password" : "text") as "text"} value={text} onInput={(event) => change(event.currentTarget.value)} aria-label="Text to send" autoComplete="off" autocapitalize="off" />
        <button>Send</button>
      </form>
    </div>
  );
}
