// Dialogs: start, stop, share, tokens, keys, and the palette that finds every action and session.
import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { go, isLink, listPath, setQuery } from "./address";
import { can, connection, info, post, remove, sessionPath } from "./api";
import { Cell, useCell } from "./cell";
import { clock, isLive, oneLine, type Session, title, when } from "./model";
import { announce, labelsOf, nextThatAsks, sessions } from "./sessions";
import { Copy, Dialog, Text, Trouble, useAnswer, useNow } from "./ui";

export type Open =
  | { is: "start"; like?: Session }
  | { is: "stop"; session: Session }
  | { is: "share"; session: Session }
  | { is: "link"; target: string }
  | { is: "tokens" }
  | { is: "keys" }
  | { is: "palette"; session?: Session };

export const dialog = new Cell<Open | null>(null);
export const openPalette = (session?: Session): void => (isLink ? undefined : dialog.set({ is: "palette", session }));
const close = (): void => dialog.set(null);
// A click on a link in a terminal.
addEventListener("link", (event) => dialog.set({ is: "link", target: (event as CustomEvent<string>).detail }));

export function Dialogs(): JSX.Element | null {
  const open = useCell(dialog);
  switch (open?.is) {
    case "start":
      return <Start like={open.like} />;
    case "stop":
      return <Stop session={open.session} />;
    case "share":
      return <Share session={open.session} />;
    case "link":
      return <OpenLink target={open.target} />;
    case "tokens":
      return <Tokens />;
    case "keys":
      return <Keys />;
    case "palette":
      return <Palette session={open.session} />;
    default:
      return null;
  }
}

/** The fields of a form that have a text. */
function filled(event: SubmitEvent): Record<string, string> {
  event.preventDefault();
  const fields = new FormData(event.currentTarget as HTMLFormElement);
  return Object.fromEntries([...fields].map(([name, value]) => [name, String(value).trim()]).filter(([, value]) => value)) as Record<string, string>;
}

interface FieldProps {
  name: string;
  label: string;
  value?: string;
  hint?: string;
  lines?: number;
  of?: string[];
  required?: boolean;
  onKeyDown?: (event: KeyboardEvent) => void;
}

function Field({ name, label, value = "", hint, lines, of, ...more }: FieldProps): JSX.Element {
  const common = { name, placeholder: hint, spellcheck: false, autoComplete: "off" as const, ...more };
  return (
    <label class="field">
      {label}
      {of ? (
        <select name={name}>
          {of.map((each) => (
            <option key={each} selected={each === value}>
              {each}
            </option>
          ))}
        </select>
      ) : lines ? (
        <textarea rows={lines} defaultValue={value} {...common} />
      ) : (
        <input defaultValue={value} {...common} />
      )}
    </label>
  );
}

interface ActProps {
  name: string;
  scope: string;
  tone?: string;
  last?: string;
  work: (fields: Record<string, string>) => Promise<unknown>;
  children: ComponentChildren;
}

/** A form with the dialog's main button: one request at a time, and only while the server answers. */
function Act({ name, scope, tone = "primary", last, work, children }: ActProps): JSX.Element {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  useCell(connection);
  const submit = (event: SubmitEvent): void => {
    const fields = filled(event);
    if (busy || !can(scope)) return;
    setBusy(true);
    setError(null);
    work(fields)
      .catch(setError)
      .finally(() => setBusy(false));
  };
  return (
    <form onSubmit={submit}>
      {children}
      <Trouble error={error} />
      <Buttons last={last}>
        <button class={tone} disabled={!can(scope)} autofocus={tone === "danger"}>
          {name}
        </button>
      </Buttons>
    </form>
  );
}

function Buttons({ children, last = "Cancel" }: { children?: ComponentChildren; last?: string }): JSX.Element {
  return (
    <div class="buttons">
      {children}
      <button type="button" onClick={close}>
        {last}
      </button>
    </div>
  );
}

const pairs = (text: string): Record<string, string> =>
  Object.fromEntries(text.split("\n").filter(Boolean).map((pair) => [pair.split("=")[0]!.trim(), pair.split("=").slice(1).join("=")]));

interface Spec {
  options: { command: string | string[]; timeout?: number | null; lifetime?: string | null; owner_pid?: number };
  env_names: string[];
}

function Start({ like }: { like?: Session }): JSX.Element {
  const { answer, error } = useAnswer<Spec>(like ? sessionPath(like.id, "/spec") : null);
  return (
    <Dialog title={like ? "Start again" : "Start a command"} close={close}>
      {(!like || answer || error) && <StartForm like={like} spec={answer} />}
      <Trouble error={error} />
    </Dialog>
  );
}

function StartForm({ like, spec }: { like?: Session; spec: Spec | null }): JSX.Element {
  const known = spec?.options.command ?? like?.command ?? "";
  const isWords = typeof known !== "string";
  const text = isWords ? known.join("\n") : known;
  const isRedacted = text.includes("[redacted]");
  const start = async ({ command: typed = "", words, tty, env, labels, owner_pid, ...rest }: Record<string, string>): Promise<void> => {
    const session = await post<Session>("/v1/sessions", {
      ...rest,
      command: words ? typed.split("\n") : typed,
      tty: tty === "on",
      ...(owner_pid && { owner_pid: Number(owner_pid) }),
      ...(labels && { labels: pairs(labels.replace(/\s+/g, "\n")) }),
      // A variable that was listed and got no value is not set.
      ...(env && { env: Object.fromEntries(Object.entries(pairs(env)).filter(([name, value]) => value || !spec?.env_names.includes(name))) }),
    });
    close();
    go(`/s/${session.id}`);
  };
  // Shift-Enter begins another line.
  const enter = (event: KeyboardEvent): void => {
    const { form } = event.currentTarget as HTMLTextAreaElement;
    if (event.key !== "Enter" || event.shiftKey || new FormData(form!).has("words")) return;
    event.preventDefault();
    form!.requestSubmit();
  };
  return (
    <Act name="Start" scope="manage" work={start}>
      <Field name="command" label="Command" value={isRedacted ? "" : text} hint="npm run dev" lines={2} required onKeyDown={enter} />
      {isRedacted && <p class="note">The command contained a secret, which is not shown: type it again.</p>}
      <span class="field">
        <span />
        <span>
          <label class="check">
            <input type="checkbox" name="tty" defaultChecked={like?.tty ?? true} /> on a terminal
          </label>
          <label class="check">
            <input type="checkbox" name="words" defaultChecked={isWords} /> one argument per line, without a shell
          </label>
        </span>
      </span>
      <Field name="cwd" label="Directory" value={like?.cwd} hint="where the server was started" />
      <Field name="name" label="Name" value={like?.name ?? ""} hint="web" />
      <details open={like !== undefined}>
        <summary>More</summary>
        <Field name="env" label="Variables" value={spec?.env_names.map((each) => `${each}=`).join("\n")} hint={"PORT=3000\nDEBUG=1"} lines={2} />
        <Field name="labels" label="Labels" value={like && labelsOf(like).join(" ")} hint="team=web stage=dev" />
        <Field name="owner" label="Owner" value={like?.owner ?? ""} hint="who is notified" />
        <Field name="timeout" label="Time limit" value={spec?.options.timeout ? `${spec.options.timeout}s` : ""} hint="10m" />
        <Field name="lifetime" label="Lifetime" of={["detached", "owner", "call"]} value={spec?.options.lifetime ?? "detached"} />
        <Field name="owner_pid" label="Owner process" value={String(spec?.options.owner_pid ?? "")} hint="pid; with lifetime owner: ends when that process ends" />
        <Field name="place" label="Place or node" value={like && like.place !== "local" ? like.place : ""} hint="local, ssh:HOST, docker:NAME, node:NAME" />
      </details>
    </Act>
  );
}

const Stop = ({ session }: { session: Session }): JSX.Element => (
  <Dialog title="Stop this session?" close={close}>
    <Act name="Stop" scope="control" tone="danger" work={() => post(sessionPath(session.id, "/stop")).then(close)}>
      <p>
        This ends <Text class="command">{oneLine(session)}</Text> and every process that it started. Its log stays.
      </p>
    </Act>
  </Dialog>
);

function OpenLink({ target }: { target: string }): JSX.Element {
  return (
    <Dialog title="Open this address?" close={close}>
      <p>
        <Text class="target" longest={2000}>
          {URL.parse(target)?.href ?? target}
        </Text>
      </p>
      <Buttons>
        <a class="button" href={target} target="_blank" rel="noopener noreferrer" onClick={close}>
          Open in a new tab
        </a>
      </Buttons>
    </Dialog>
  );
}

interface Minted {
  id: string;
  label: string;
  scope: string;
  kind: string;
  created_at: string;
  expires_at: string | null;
}

/** Tokens or links: make one, see it once, list them, revoke. */
function Secrets(props: { title: string; path: string; make: string; secret: "url" | "token"; children: ComponentChildren }): JSX.Element {
  const { answer, error, again, fail } = useAnswer<{ items: Minted[] }>(props.path);
  const [made, setMade] = useState("");
  const now = useNow();
  const make = async (fields: Record<string, string>): Promise<void> => {
    const found = await post<Record<string, string>>(props.path, fields);
    setMade(found[props.secret]!);
    again();
  };
  return (
    <Dialog title={props.title} close={close}>
      <Act name={props.make} scope="manage" last="Close" work={make}>
        {props.children}
        {made && (
          <div class="made">
            <p class="dim">Copy it now: it is shown only once.</p>
            <Copy text={made} />
          </div>
        )}
        <Trouble error={error} />
        <ul class="plain">
          {answer?.items.map((each) => (
            <li key={each.id}>
              <span>
                {props.secret === "token" && <Text>{`${each.label} (${each.scope}), `}</Text>}
                {`made ${when(each.created_at, now)}${each.expires_at ? `, valid until ${clock(each.expires_at, now)}` : ""}`}
              </span>
              <button type="button" class="right" disabled={!can("manage")} onClick={() => void remove(`${props.path}/${each.id}`).then(again, fail)}>
                Revoke
              </button>
            </li>
          ))}
        </ul>
      </Act>
    </Dialog>
  );
}

const Share = ({ session }: { session: Session }): JSX.Element => (
  <Secrets title="Share as an observer link" path={sessionPath(session.id, "/links")} make="Make a link" secret="url">
    <p>
      The link shows <Text class="command">{title(session)}</Text> and nothing else. It cannot type, stop or start anything.
    </p>
    <Field name="ttl" label="Valid for" of={["1h", "24h", "7d"]} value="24h" />
  </Secrets>
);

const Tokens = (): JSX.Element => (
  <Secrets title="Tokens" path="/v1/tokens" make="Make a token" secret="token">
    <Field name="label" label="Label" hint="ci" required />
    <Field name="scope" label="Scope" of={["observe", "control", "manage"]} />
    <Field name="ttl" label="Valid for" value="24h" />
  </Secrets>
);

const KEYS: [string, string][] = [
  ["j k ↓ ↑", "move in the list"],
  ["Enter", "open"],
  ["o", "observe"],
  ["/", "filter the list, find in a session"],
  ["n", "start a command"],
  ["x", "stop"],
  ["s", "share"],
  ["[ ]", "previous and next session that needs you"],
  ["g l, g i, g g", "list, inbox, grid"],
  ["l", "from an earlier moment to live"],
  ["Ctrl-K", "every action and session"],
  ["Esc", "back"],
  ["Ctrl-] then d", "in a terminal: to the list"],
  ["Ctrl-] then o r z", "observe, repaint, size"],
  ["Ctrl-] then b l /", "back in time, live, find"],
  ["Ctrl-] then n p k", "next and previous session that needs you, every action"],
  ["Ctrl-] then Esc or Tab", "leave the terminal"],
  ["Ctrl-] twice", "Ctrl-] itself"],
];

const Keys = (): JSX.Element => (
  <Dialog title="Keys" close={close}>
    <dl class="keys">
      {KEYS.map(([keys, what]) => (
        <div key={keys}>
          <dt>
            <kbd>{keys}</kbd>
          </dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
    <p class="dim">Holdfast {info.value?.version}</p>
    <Buttons last="Close" />
  </Dialog>
);

export interface Action {
  text: string;
  run: () => void;
}

/** What can be done in the terminal that is attached. */
export const terminalActions = new Cell<Action[]>([]);

function actions(session?: Session): Action[] {
  const open = (text: string, next: Open): Action => ({ text, run: () => dialog.set(next) });
  const found: Action[] = [
    ...[["list", listPath()], ["inbox", "/inbox"], ["grid", "/grid"]].map(([name, to]) => ({ text: `Go to the ${name}`, run: () => go(to!) })),
    open("Show the keys", { is: "keys" }),
  ];
  for (const [text, step] of [["Next session that needs you", 1], ["Previous session that needs you", -1]] as const) {
    found.push({ text, run: () => nextThatAsks(session?.id ?? null, step) });
  }
  if (session) found.unshift({ text: "Find in this session", run: () => setQuery({ find: "1" }) }, ...terminalActions.value);
  if (can("manage")) found.unshift(open("Start a command", { is: "start" }), open("Tokens", { is: "tokens" }));
  if (session && can("manage")) found.unshift(open("Share this session", { is: "share", session }), open("Start this again", { is: "start", like: session }));
  if (session && isLive(session) && can("control")) found.unshift(open("Stop this session", { is: "stop", session }));
  return found;
}

function settings(): Action[] {
  const set = (text: string, key: string, value: string): Action => ({ text, run: () => { localStorage.setItem(key, value); dispatchEvent(new Event("settings")); announce(text); } });
  return [
    ...["system", "light", "dark"].map((each) => set(`Theme: ${each}`, "theme", each)),
    ...[11, 13, 15, 18].map((each) => set(`Font size: ${each}`, "font", String(each))),
    set("Notifications: with output text", "notify", "text"),
    set("Notifications: without output text", "notify", ""),
  ];
}

const MOST = 12;

function Palette({ session }: { session?: Session }): JSX.Element {
  const all = useCell(sessions);
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const found = useMemo(() => {
    const each: Action[] = [
      ...actions(session),
      ...[...all.values()].map((one) => ({ text: `${title(one)} · ${one.id}`, run: () => go(`/s/${one.id}`) })),
      ...settings(),
    ];
    return each.filter((action) => hasLetters(action.text.toLowerCase(), typed.toLowerCase())).slice(0, MOST);
  }, [all, typed]);
  const run = (action: Action | undefined): void => {
    close();
    action?.run();
  };
  const key = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setAt(Math.min(at + 1, found.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else if (event.key === "Enter") run(found[at]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog title="Find a session or an action" close={close}>
      <input
        class="wide"
        role="combobox"
        aria-label="Action or session"
        aria-expanded="true"
        aria-controls="found"
        aria-activedescendant={found[at] ? `found-${at}` : undefined}
        autofocus
        value={typed}
        onKeyDown={key}
        onInput={(event) => {
          setTyped(event.currentTarget.value);
          setAt(0);
        }}
      />
      <ul id="found" class="plain" role="listbox" aria-label="Found">
        {found.map((action, index) => (
          <li key={action.text} id={`found-${index}`} role="option" aria-selected={index === at} onClick={() => run(action)}>
            <Text longest={80}>{action.text}</Text>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

/** Whether the text contains the letters in this order. */
function hasLetters(text: string, letters: string): boolean {
  let from = 0;
  for (const letter of letters) {
    from = text.indexOf(letter, from) + 1;
    if (from === 0) return false;
  }
  return true;
}
