// One session: its screen or log, now or at any moment before, what happened, and what is known about it.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { About, Signals } from "./about";
import { address, setQuery } from "./address";
import { can, get, Refused, sessionPath } from "./api";
import { useCell } from "./cell";
import { dialog } from "./dialogs";
import { Find } from "./find";
import { LiveTerminal } from "./live";
import { Log } from "./log";
import { age, isLive, look, mainStream, oneLine, ran, type Session, title } from "./model";
import { Past } from "./past";
import { ofNode, sessions } from "./sessions";
import { Timeline } from "./timeline";
import { State, Text, Trouble, useNow, Waiting } from "./ui";

const TABS = ["screen", "log", "signals", "about"] as const;

export function SessionPage({ reference }: { reference: string }): JSX.Element {
  const all = useCell(sessions);
  const { query } = useCell(address);
  const now = useNow();
  const [read, setRead] = useState<Session | null>(null);
  const [error, setError] = useState<unknown>(null);
  const known = all.get(read?.id ?? reference);
  // Read again when it is removed elsewhere: the answer says so.
  useEffect(() => {
    get<Session>(sessionPath(reference)).then(
      (found) => {
        setRead(ofNode(reference.split("/").at(-2), found));
        setError(null);
      },
      (problem) => {
        if (problem instanceof Refused) setRead(null);
        setError(problem);
      },
    );
  }, [reference, known === undefined]);
  const session = known ?? read;
  if (!session && error) {
    return (
      <main class="session">
        <h1 class="hidden">{reference}</h1>
        <Trouble error={error} />
      </main>
    );
  }
  if (!session) return <Waiting what={reference} />;
  const asked = query.get("tab") ?? "screen";
  const tab = asked === "screen" && !session.tty ? "log" : asked;
  const at = query.has("at") ? Number(query.get("at")) : null;
  const of = query.get("of") ?? mainStream(session);
  return (
    <main class="session">
      <Header session={session} now={now} tab={tab} />
      {query.has("find") && <Find session={session} />}
      <View session={session} tab={tab} at={at} of={of} now={now} />
      {(tab === "screen" || tab === "log") && <Timeline session={session} at={at} of={of} />}
    </main>
  );
}

function View(props: { session: Session; tab: string; at: number | null; of: string; now: number }): JSX.Element {
  const { session, tab, at, of, now } = props;
  if (tab === "signals") return <Signals session={session} now={now} />;
  if (tab === "about") return <About session={session} now={now} />;
  if (tab === "log") return <Log session={session} at={at} of={of} />;
  return <Screen session={session} at={at} />;
}

/** The screen, now or earlier. Once attached, a session stays attached while its past is shown. */
function Screen({ session, at }: { session: Session; at: number | null }): JSX.Element {
  const [wasLive, setWasLive] = useState(at === null);
  const live = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (at !== null) return;
    setWasLive(true);
    live.current?.querySelector("textarea")?.focus();
  }, [at]);
  return (
    <div class="stage">
      {at !== null && <Past key="past" session={session} at={at} />}
      {(wasLive || at === null) && (
        <div key="live" ref={live} class="behind" inert={at !== null}>
          <LiveTerminal session={session} />
        </div>
      )}
    </div>
  );
}

function Header({ session, now, tab }: { session: Session; now: number; tab: string }): JSX.Element {
  const note = look(session, now).note;
  const windowTitle = session.metadata["title"];
  return (
    <>
      <header>
        <div class="what">
          <h1>
            <Text>{title(session)}</Text>
          </h1>
          <State session={session} now={now} />
          <span class="dim">{isLive(session) ? `for ${ran(session, now)}` : `after ${ran(session, now)}${session.ended_at ? `, ${age(session.ended_at, now)} ago` : ""}`}</span>
          {typeof windowTitle === "string" && windowTitle && <Text class="dim">{windowTitle}</Text>}
          <span class="right">
            <button onClick={() => setQuery({ find: "1" })}>Find</button>
            {can("manage") && (
              <button class="wide-only" onClick={() => dialog.set({ is: "share", session })}>
                Share
              </button>
            )}
            {isLive(session)
              ? can("control") && (
                  <button class="danger" onClick={() => dialog.set({ is: "stop", session })}>
                    Stop
                  </button>
                )
              : can("manage") && <button onClick={() => dialog.set({ is: "start", like: session })}>Start again</button>}
          </span>
        </div>
        <p class="command">
          <Text>{oneLine(session)}</Text> <Text class="dim cwd">{session.cwd}</Text>
        </p>
        <nav aria-label="Views">
          {TABS.filter((name) => name !== "screen" || session.tty).map((name) => (
            <button key={name} class="tab" aria-pressed={tab === name} onClick={() => setQuery({ tab: name === "screen" ? "" : name }, "push")}>
              {name}
            </button>
          ))}
        </nav>
      </header>
      {note && (
        <p class="note">
          <Text longest={400}>{note}</Text>
        </p>
      )}
    </>
  );
}
