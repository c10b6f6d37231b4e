// What happened to a session, and what is known about it.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, machineOf, sessionPath, type SignalRecord } from "./api";
import { useCell } from "./cell";
import { SignalLine, signalsSeen } from "./inbox";
import { age, bytes, commandLine, type Session, when } from "./model";
import { Link, Text, Trouble, useAnswer } from "./ui";

const NODE_MS = 2000;

export function Signals({ session, now }: { session: Session; now: number }): JSX.Element {
  const [items, setItems] = useState<SignalRecord[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const seen = useCell(signalsSeen);
  useEffect(() => {
    const read = (): void => void signalsOf(session.id).then(setItems, setError);
    read();
    // Signals of nodes are not sent to this page: a change of the session means that there is a signal, or soon will be.
    const again = session.node ? setTimeout(read, NODE_MS) : 0;
    return () => clearTimeout(again);
  }, [session.id, seen, session.state, session.needs_input?.since]);
  return (
    <section class="padded">
      <Trouble error={error} />
      {items?.length === 0 && <p class="dim">No events were recorded.</p>}
      <ul class="signals">
        {items?.toReversed().map((each) => (
          <SignalLine key={each.id} signal={each} now={now} within />
        ))}
      </ul>
    </section>
  );
}

async function signalsOf(id: string): Promise<SignalRecord[]> {
  const found: SignalRecord[] = [];
  const { own, api } = machineOf(id);
  for (let after = "0"; ; ) {
    const page = await get<{ items: SignalRecord[]; next: string }>(`${api}/signals?session=${own}&limit=200&after=${after}`);
    found.push(...page.items.map((each) => ({ ...each, session: id })));
    if (page.items.length < 200) return found;
    after = page.next;
  }
}

interface Input {
  at: string;
  by: string | null;
  bytes: number;
  offset: number;
}

interface Spec {
  options: Record<string, unknown>;
  env_names: string[];
}

// Options that are among the facts of the session already.
const SHOWN = new Set(["command", "cwd", "owner", "labels", "place"]);

function optionText(name: string, value: unknown): string {
  if (name === "umask") return `0${Number(value).toString(8)}`;
  if (name === "log_cap") return bytes(Number(value));
  if (name === "size" && Array.isArray(value)) return `${value[1]}×${value[0]}`;
  if (typeof value !== "object" || value === null || Array.isArray(value)) return typeof value === "string" ? value : JSON.stringify(value);
  const parts = Object.entries(value).filter(([, part]) => part !== null);
  return parts.map(([part, text]) => `${part}=${typeof text === "string" ? text : JSON.stringify(text)}`).join(" ");
}

export function About({ session, now }: { session: Session; now: number }): JSX.Element {
  const inputs = useAnswer<{ items: Input[] }>(sessionPath(session.id, "/inputs?limit=200"));
  const { answer: spec, error } = useAnswer<Spec>(sessionPath(session.id, "/spec"));
  useEffect(inputs.again, [session.last_output_at]);
  const wrote = inputs.answer?.items ?? [];
  const { exit } = session;
  const facts: [string, string][] = [
    ["id", session.id],
    ["command", commandLine(session)],
    ["directory", session.cwd],
    ["owner", session.owner ?? ""],
    ["labels", Object.entries(session.labels).map((pair) => pair.join("=")).join(" ")],
    ["place", session.place],
    ["pid", String(session.pid ?? "")],
    ["attempt", String(session.attempt)],
    ["created", when(session.created_at, now)],
    ["ended", session.ended_at ? when(session.ended_at, now) : ""],
    ["log", bytes(session.log_bytes)],
    ["exit", exit ? `${exit.signal ?? exit.code}, cause ${exit.cause}${exit.by ? `, by ${exit.by}` : ""}` : ""],
    ["survivors", exit?.survivors.length ? JSON.stringify(exit.survivors) : ""],
    ["variables set", spec?.env_names.join(" ") ?? ""],
    ...Object.entries(spec?.options ?? {})
      .filter(([name]) => !SHOWN.has(name))
      .map(([name, value]): [string, string] => [name.replaceAll("_", " "), optionText(name, value)]),
  ];
  return (
    <section class="padded">
      <Trouble error={error ?? inputs.error} />
      <dl class="about">
        {facts
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>
                <Text longest={2000}>{value}</Text>
              </dd>
            </div>
          ))}
      </dl>
      {wrote.length > 0 && <h2>Inputs</h2>}
      <ul class="signals">
        {wrote.toReversed().map((each, index) => (
          <li key={index}>
            <span class="age">{age(each.at, now)}</span>
            <Link to={`/s/${session.id}?at=${each.offset}`}>
              <Text>{`${each.by ?? "unknown"} wrote ${bytes(each.bytes)}`}</Text>
            </Link>
          </li>
        ))}
      </ul>
    </section>
  );
}
