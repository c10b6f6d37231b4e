// The page: signs in, follows the server, and shows what the address names.
import { type JSX, render } from "preact";
import { useEffect } from "preact/hooks";
import { address, go, isLink, listPath, sessionOf, setQuery } from "./address";
import { can, connection, follow, Gone, info, outdated, type Problem, signIn, tryNow } from "./api";
import { useCell } from "./cell";
import { dialog, Dialogs, openPalette } from "./dialogs";
import { Grid } from "./grid";
import { Inbox, openInbox, signalsSeen } from "./inbox";
import { List } from "./list";
import { age, isLive, needsSomebody } from "./model";
import { askToNotify, notify, notifications } from "./notify";
import { SessionPage } from "./session";
import { announce, announcement, current, listed, listener, nextThatAsks, sessions } from "./sessions";
import { Copy, isTyping, Link, useNow, Waiting } from "./ui";

function Page(): JSX.Element {
  const state = useCell(connection);
  const { path } = useCell(address);
  const said = useCell(announcement);
  const all = useCell(sessions);
  useShortcuts();
  if (state.is === "signed-out") {
    return (
      <main class="empty">
        <h1>Holdfast</h1>
        <p>{state.why}</p>
        <p>{state.fix}</p>
        <Copy text="hold open" />
      </main>
    );
  }
  const session = isLink ? ([...all.keys()][0] ?? null) : sessionOf(path);
  return (
    <>
      {!isLink && <Bar path={path} />}
      {state.is === "gone" && <Lost since={state.since} next={state.next} found={state.found} />}
      <Outdated />
      <Screen path={path} session={session} />
      <Dialogs />
      <div class="hidden" aria-live="polite">
        {said}
      </div>
    </>
  );
}

function Screen({ path, session }: { path: string; session: string | null }): JSX.Element {
  const isKnown = useCell(info) !== null;
  if (!session && !isLink && path !== "/inbox" && path !== "/grid") return <List />;
  // The other screens need to know first what this person may do.
  if (!isKnown || (isLink && !session)) return <Waiting what="the server" />;
  return session ? <SessionPage key={session} reference={session} /> : path === "/inbox" ? <Inbox /> : <Grid />;
}

function Bar({ path }: { path: string }): JSX.Element {
  const asking = listed(useCell(sessions)).filter(needsSomebody).length;
  const permission = useCell(notifications);
  return (
    <header class="top">
      <Link to={listPath()} class="brand">
        Holdfast
      </Link>
      <nav aria-label="Screens">
        <Link to={listPath()} current={path === "/"}>
          Sessions
        </Link>
        <Link to="/inbox" current={path === "/inbox"}>
          Inbox{asking > 0 && <b class="badge">{asking}</b>}
        </Link>
        <Link to="/grid" current={path === "/grid"}>
          Grid
        </Link>
      </nav>
      <span class="right">
        {permission === "default" && (
          <button class="quiet wide-only" onClick={askToNotify}>
            Notify me
          </button>
        )}
        <ThemeSwitch />
        <button class="quiet" onClick={() => openPalette(current())} title="Every action and session">
          Go to <kbd>Ctrl K</kbd>
        </button>
        {can("manage") && (
          <button class="primary" onClick={() => dialog.set({ is: "start" })}>
            Start
          </button>
        )}
      </span>
    </header>
  );
}

function ThemeSwitch(): JSX.Element {
  return (
    <select
      class="quiet wide-only"
      aria-label="Theme"
      value={localStorage.getItem("theme") ?? "system"}
      onChange={(event) => {
        localStorage.setItem("theme", event.currentTarget.value);
        dispatchEvent(new Event("settings"));
      }}
    >
      <option value="system">System theme</option>
      <option value="light">Light</option>
      <option value="dark">Dark</option>
    </select>
  );
}

function applyTheme(): void {
  document.documentElement.dataset["theme"] = localStorage.getItem("theme") ?? "system";
}

function Lost({ since, next, found }: { since: number; next: number; found?: Problem }): JSX.Element {
  const now = useNow();
  const ago = age(new Date(since).toISOString(), now);
  return (
    <section class="lost" aria-label="Connection">
      <strong>{found ? found.title : "The server does not answer"}</strong>
      <span>
        {found && `${found.detail} ${found.fix ?? ""} `}What is shown is {ago} old. <span class="wide-only">Sessions are not affected. </span>Next try in {Math.max(0, Math.ceil((next - now) / 1000))} s.
      </span>
      <button onClick={tryNow}>Try now</button>
    </section>
  );
}

function Outdated(): JSX.Element | null {
  const found = useCell(outdated);
  if (!found) return null;
  return (
    <div class="lost" role="status">
      <strong>The server has version {found.version}</strong>
      <span>
        {found.lacks.length
          ? `This page is older than the server and does not know all of its features (${found.lacks.join(", ")}): reload to use these again.`
          : `This page has version ${info.value?.version} and keeps working. Reload to get the new one.`}
      </span>
      <button onClick={() => location.reload()}>Reload</button>
    </div>
  );
}

const GO: Record<string, () => string> = { l: listPath, i: () => "/inbox", g: () => "/grid" };

function useShortcuts(): void {
  useEffect(() => {
    let isAfterG = false;
    const key = (event: KeyboardEvent): void => {
      if (event.ctrlKey && event.key === "k" && !(event.target as HTMLElement).closest(".terminal")) {
        event.preventDefault();
        openPalette(current());
        return;
      }
      if (isLink || isTyping(event) || event.ctrlKey || event.altKey || event.metaKey) return;
      const session = current() ?? focused();
      const to = isAfterG ? GO[event.key] : undefined;
      isAfterG = event.key === "g" && !to;
      if (to) go(to());
      else if (event.key === "l" && address.value.query.has("at")) setQuery({ at: "", of: "" }, "push");
      else if (event.key === "/" && current()) setQuery({ find: "1" });
      else if (event.key === "/") document.getElementById("filter")?.focus();
      else if (event.key === "Escape" && location.pathname !== "/") go(listPath());
      else if (event.key === "?") dialog.set({ is: "keys" });
      else if (event.key === "n" && can("manage")) dialog.set({ is: "start" });
      else if (event.key === "x" && session && isLive(session) && can("control")) dialog.set({ is: "stop", session });
      else if (event.key === "s" && session && can("manage")) dialog.set({ is: "share", session });
      else if (event.key === "Enter" && session && !current() && document.activeElement === document.body) go(`/s/${session.id}`);
      else if (event.key === "o" && session) go(`/s/${session.id}`, { observe: "1" });
      else if (event.key === "[" || event.key === "]") nextThatAsks(session?.id ?? null, event.key === "]" ? 1 : -1);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
}

const focused = () => sessions.value.get(document.querySelector<HTMLElement>("a.row[data-current]")?.dataset["id"] ?? "");

async function begin(): Promise<void> {
  for (;;) {
    try {
      await signIn();
      break;
    } catch (error) {
      if (!(error instanceof Gone)) break;
      connection.set({ is: "gone", since: Date.now(), next: Date.now() + 1000 });
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
  if (connection.value.is === "signed-out") return;
  void openInbox();
  await follow({
    ...listener,
    signal(signal) {
      signalsSeen.set(signalsSeen.value + 1);
      notify(signal);
    },
  });
}

// After a sign-out, no data of a session remains.
let was = connection.value.is;
connection.watch(() => {
  const { is } = connection.value;
  if (is === "gone" && was !== "gone") announce("The server does not answer");
  if (is === "live" && was === "gone") announce("The server answers again");
  was = is;
  if (connection.value.is !== "signed-out") return;
  sessions.set(new Map());
  document.title = "Holdfast";
});

applyTheme();
addEventListener("settings", applyTheme);
render(<Page />, document.getElementById("app")!);
void begin();
