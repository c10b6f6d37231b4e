// What waits for a person: questions, answered in place, and signals that are not settled.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { can, get, info, may, post, put, sessionPath, type SignalRecord } from "./api";
import { Cell, useCell } from "./cell";
import { age, clock, look, needsSomebody, plain, type Session, title } from "./model";
import { listed, sessions } from "./sessions";
import { Link, State, Text, Trouble, useNow } from "./ui";

/** Counts the signals seen and settled, so that what shows them reads again. */
export const signalsSeen = new Cell(0);
const again = (): void => signalsSeen.set(signalsSeen.value + 1);

// The other tabs of this browser hear of what is settled here.
const settled = new BroadcastChannel("settled");
settled.onmessage = again;
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && again());

const consumer = (): string => `/v1/consumers/people:web:${(info.value?.label ?? "").toLowerCase().replace(/[^a-z0-9._:-]/g, "-").slice(0, 50)}`;

let opened: Promise<unknown> | null = null;

/** From now on, signals are queued for this person. Opening it again changes nothing. */
export function openInbox(): Promise<unknown> {
  return (opened ??= may("control") ? put(consumer(), { owners: "*", start: "now" }).catch(() => (opened = null)) : Promise.resolve());
}

export function Inbox(): JSX.Element {
  const now = useNow();
  const waiting = listed(useCell(sessions)).filter(needsSomebody);
  const asking = waiting.filter((each) => each.state === "running");
  const broken = waiting.filter((each) => each.state !== "running");
  const heading = useRef<HTMLHeadingElement>(null);
  const before = useRef(asking.length);
  useEffect(() => {
    // The field that had the focus went with its question. Another one must not get the next Enter.
    const isLost = asking.length < before.current && document.activeElement === document.body;
    if (isLost) heading.current?.focus();
    before.current = asking.length;
  }, [asking.length]);
  return (
    <main class="inbox">
      <h1 ref={heading} tabIndex={-1}>
        Inbox
      </h1>
      <section aria-label="What needs you">
        {asking.length === 0 && <p class="dim">No session waits for input.</p>}
        {asking.map((session) => (
          <Question key={session.id} session={session} now={now} />
        ))}
        {broken.map((session) => (
          <article key={session.id} class="question">
            <h2>
              <Link to={`/s/${session.id}`}>
                <Text>{title(session)}</Text>
              </Link>
              <State session={session} now={now} />
            </h2>
            <p>
              <Text longest={400}>{look(session, now).note ?? ""}</Text>
            </p>
          </article>
        ))}
      </section>
      <Signals now={now} />
    </main>
  );
}

function Question({ session, now }: { session: Session; now: number }): JSX.Element {
  const asks = session.needs_input!;
  const [error, setError] = useState<unknown>(null);
  const [sent, setSent] = useState(false);
  const answer = (event: SubmitEvent): void => {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem("answer") as HTMLInputElement;
    const text = field.value;
    field.value = "";
    post(sessionPath(session.id, "/input"), { submit: text }).then(
      () => {
        setSent(true);
        setError(null);
      },
      setError,
    );
  };
  return (
    <article class="question">
      <h2>
        <Link to={`/s/${session.id}`}>
          <Text>{title(session)}</Text>
        </Link>
        <span class="dim"> {age(asks.since, now)}</span>
      </h2>
      <p class="line">{asks.secret ? "asks for a secret" : <Text>{asks.line ?? look(session).word}</Text>}</p>
      <p class="dim">
        seems to wait for input: {asks.evidence.join(", ").replaceAll("_", " ")} ({asks.confidence} confidence)
      </p>
      {can("control") && (
        <form onSubmit={answer}>
          <input
            name="answer"
            type={(asks.secret ? "password" : "text") as "text"}
            autoComplete="off"
            spellcheck={false}
            placeholder={asks.secret ? "Secret; Enter sends it" : "Answer; Enter sends it"}
            aria-label={`Answer to ${plain(title(session))}`}
          />
          <button>Send</button>
          {sent && <span class="dim">sent</span>}
        </form>
      )}
      <Trouble error={error} />
    </article>
  );
}

interface Waiting {
  waiting: number;
  items: SignalRecord[];
}

function Signals({ now }: { now: number }): JSX.Element {
  const seen = useCell(signalsSeen);
  const self = useCell(info);
  const [waiting, setWaiting] = useState<Waiting | null>(null);
  const [error, setError] = useState<unknown>(null);
  const read = async (): Promise<Waiting> => (await openInbox(), get<Waiting>(`${consumer()}?limit=200`));
  useEffect(() => {
    if (!self) return;
    let isNewest = true;
    read().then((answer) => isNewest && setWaiting(answer), setError);
    return () => void (isNewest = false);
  }, [seen, self]);
  const settle = async (ids: string[]): Promise<void> => {
    await post(`${consumer()}/settle`, { ids });
    settled.postMessage(null);
    again();
  };
  const settleAll = async (): Promise<void> => {
    for (let page = waiting!; page.items.length; page = await read()) await settle(page.items.map((each) => each.id));
  };
  // Open questions are listed above.
  const items = (waiting?.items ?? []).filter((each) => each.variant !== "needs_input" || !sessions.value.get(each.session)?.needs_input).reverse();
  return (
    <section aria-label="Signals">
      <h2>
        Signals
        {items.length > 0 && <span class="dim">{waiting!.waiting - waiting!.items.length + items.length}</span>}
        {items.length > 0 && can("control") && (
          <button class="right" onClick={() => settleAll().catch(setError)}>
            Settle all
          </button>
        )}
      </h2>
      <Trouble error={error} again={again} />
      {waiting && <p class="dim">{items.length ? "Signals from your sessions. Settling one removes it from this list in all your tabs." : "Nothing new."}</p>}
      <ul class="signals">
        {items.map((each) => (
          <SignalLine key={each.id} signal={each} now={now} settle={can("control") ? () => void settle([each.id]).catch(setError) : undefined} />
        ))}
      </ul>
    </section>
  );
}

/** One signal, which leads to its session and offset; `within` the page of that session. */
export function SignalLine(props: { signal: SignalRecord; now: number; settle?: () => void; within?: boolean }): JSX.Element {
  const { signal, now, settle, within } = props;
  const { offset, stream } = placeOf(signal);
  const of = stream === "stderr" ? "&of=stderr" : "";
  const session = sessions.value.get(signal.session);
  const { phase, status } = fieldsOf(signal);
  return (
    <li>
      <span class="age" title={`${clock(signal.at, now)}${offset === null ? "" : `, byte ${offset}`}`}>
        {age(signal.at, now)} ago
      </span>
      <Link to={`/s/${signal.session}${offset === null ? "" : `?at=${offset}${of}`}`}>
        {!within && (
          <strong>
            <Text>{session ? title(session) : signal.session}</Text>
          </strong>
        )}{" "}
        {session?.exit && phase === "ended" ? <State session={session} now={now} /> : <Text class={status === "failed" ? "bad" : ""}>{describe(signal)}</Text>}
      </Link>
      {settle && (
        <button aria-label={`Settle ${signal.id}`} onClick={settle}>
          Settle
        </button>
      )}
    </li>
  );
}

type Fields = Record<string, unknown> & { offset?: number; from?: number; stream?: string; ends?: Record<string, number>; lines?: (string | { text: string; offset: number })[] };

export const fieldsOf = (signal: SignalRecord): Fields => (signal[signal.variant] ?? {}) as Fields;

/** Where in the log it happened: an end at the end. */
export function placeOf(signal: SignalRecord): { offset: number | null; stream: string } {
  const fields = fieldsOf(signal);
  const line = fields.lines?.[0];
  const [stream, end] = Object.entries(fields.ends ?? {}).find(([, offset]) => offset > 0) ?? [];
  return { offset: fields.offset ?? fields.from ?? (typeof line === "object" ? line.offset : null) ?? end ?? null, stream: fields.stream ?? stream ?? "" };
}

function describe(signal: SignalRecord): string {
  const fields = fieldsOf(signal);
  const line = fields.lines?.[0];
  const said = [typeof line === "object" ? line.text : line, fields["secret"] ? "a secret" : fields["line"], fields["tail"], fields["status"], fields["state"], fields["text"]];
  const word = signal.variant === "lifecycle" ? String(fields["phase"]) : signal.variant === "needs_input" ? "asks" : signal.variant.replaceAll("_", " ");
  const text = said.find((each): each is string => typeof each === "string" && each !== "");
  const code = typeof fields["code"] === "number" ? `, exit ${fields["code"]}` : "";
  return `${word}${text ? ` · ${text}` : ""}${code}`;
}
