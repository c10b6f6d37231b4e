// What the server answers, and how a session is shown: glyph, word and tone for every state.

export interface Exit {
  code: number | null;
  signal: string | null;
  cause: string;
  by: string | null;
  oom: boolean;
  survivors: unknown[];
}

export interface NeedsInput {
  line: string | null;
  secret: boolean;
  since: string;
  confidence: string;
  evidence: string[];
}

export interface Session {
  id: string;
  /** The machine it runs on, if it is a session of a node; its id is `NODE/ID` then. */
  node?: string | null;
  name: string | null;
  owner: string | null;
  labels: Record<string, string>;
  command: string | string[];
  cwd: string;
  tty: boolean;
  size: [number, number] | null;
  state: string;
  stopping: { by?: string | null; since?: string; stage?: string } | null;
  pid: number | null;
  place: string;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
  attempt: number;
  exit: Exit | null;
  ends: Record<string, number>;
  dropped_before: Record<string, number>;
  log_bytes: number;
  last_output_at: string | null;
  attached: { control: number; observe: number };
  needs_input: NeedsInput | null;
  condition?: string;
  metadata: Record<string, unknown>;
}

export type Tone = "busy" | "good" | "quiet" | "ask" | "bad" | "off";

export interface Look {
  glyph: string;
  word: string;
  tone: Tone;
  /** One sentence: why, and what can be done. */
  note?: string;
}

const QUIET_MS = 5 * 60_000;

const UNKNOWN: Record<string, Look> = {
  unreachable: { glyph: "!", word: "unreachable", tone: "ask", note: "Its runner does not answer. The command may still be running; the log so far can be read. Try again, or run `hold doctor`." },
  stale: { glyph: "!", word: "stale", tone: "ask", note: "Its runner is gone and the command is still running. Stop ends it; what it prints now is not kept." },
  lost: { glyph: "?", word: "lost", tone: "bad", note: "Runner and command are gone and no exit was recorded. The log so far can be read; start it again if it is still needed." },
};

const LIMITS: Record<string, string> = {
  overall_timeout: "timed out",
  idle_timeout: "idle timeout",
  ttl: "time to live over",
  owner_gone: "owner gone",
};

export function look(session: Session, now = Date.now()): Look {
  const unknown = UNKNOWN[session.state];
  const { why, seen_at, restarting } = session.metadata as { why?: string; seen_at?: string | null; restarting?: { attempt: number; at: string } };
  if (unknown && session.node && why) return { ...unknown, note: `${why}${seen_at ? `; last heard ${age(seen_at, now)} ago` : ""}. Its sessions are not affected.` };
  if (unknown) return unknown;
  if (session.exit || session.state === "exited") return ended(session);
  if (session.stopping) {
    const { by, since, stage } = session.stopping;
    const note = `${by ?? "Somebody"} asked it to stop${since ? ` ${age(since, now)} ago` : ""}${stage ? `; now: ${stage}` : ""}.`;
    return { glyph: "◐", word: "stopping", tone: "quiet", note };
  }
  if (session.needs_input) return { glyph: "◆", word: "needs input", tone: "ask" };
  if (restarting) {
    const wait = Math.max(0, Math.ceil((Date.parse(restarting.at) - now) / 1000));
    return { glyph: "◌", word: `restarting, try ${restarting.attempt}`, tone: "quiet", note: `Try ${restarting.attempt} starts in ${wait} s.` };
  }
  if (session.condition === "unhealthy") return { glyph: "✗", word: "unhealthy", tone: "bad" };
  if (session.state === "starting") return { glyph: "◌", word: "starting", tone: "quiet" };
  const last = Date.parse(session.last_output_at ?? session.started_at ?? session.created_at);
  const silent = now - last > QUIET_MS;
  return silent ? { glyph: "○", word: "running, quiet", tone: "busy" } : { glyph: "●", word: "running", tone: "busy" };
}

function ended({ exit, metadata }: Session): Look {
  if (!exit) return { glyph: "?", word: "ended", tone: "off" };
  const left = exit.survivors.length ? `, ${exit.survivors.length} still running` : "";
  const limit = LIMITS[exit.cause];
  if (exit.oom || exit.cause === "out_of_memory") return { glyph: "✗", word: `out of memory${left}`, tone: "bad" };
  if (limit) return { glyph: "■", word: limit + left, tone: exit.cause.endsWith("timeout") ? "bad" : "off" };
  if (exit.cause === "stop") return { glyph: "■", word: `stopped${exit.by ? ` by ${exit.by}` : ""}${left}`, tone: "off" };
  if (exit.cause === "spawn_error") return { glyph: "✗", word: "could not start", tone: "bad", note: (metadata["error"] as { message?: string } | undefined)?.message };
  if (exit.signal) return { glyph: "✗", word: exit.signal + left, tone: "bad" };
  if (exit.code === 0) return { glyph: "✓", word: `exit 0${left}`, tone: "good" };
  return { glyph: "✗", word: `exit ${exit.code}${left}`, tone: "bad" };
}

export function isLive(session: Session): boolean {
  return !session.exit && session.state !== "exited" && session.state !== "lost";
}

/** Sessions that a person should look at come first. */
export function needsSomebody(session: Session): boolean {
  return session.needs_input !== null || (session.state === "unreachable" && !session.node) || session.state === "stale";
}

/** A session of a node is named as `hold` names it: NODE/NAME. */
export function title(session: Session): string {
  const { name, node } = session;
  if (!node) return name ?? oneLine(session);
  return name ? `${node}/${name}` : `${node}: ${oneLine(session)}`;
}

/** The command for one line: its line ends and indentation as single spaces. */
export const oneLine = (session: Session): string => commandLine(session).trim().replace(/\s+/g, " ");

/** How long it ran, or has run. */
export function ran(session: Session, now: number): string {
  const from = Date.parse(session.started_at ?? session.created_at);
  return span(Math.max(0, ((session.ended_at ? Date.parse(session.ended_at) : now) - from) / 1000));
}

export function commandLine(session: Session): string {
  const { command } = session;
  if (typeof command === "string") return command;
  return command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");
}

const LONGEST = 200;

/** Text from a program, for one line: control pictures for control characters, and never longer than 200 characters. */
export function plain(text: string, longest = LONGEST): string {
  const shown = text.replace(/[\u0000-\u001f\u007f-\u009f]/g, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : "\ufffd";
  });
  return shown.length > longest ? shown.slice(0, longest - 1) + "…" : shown;
}

export const age = (from: string, now = Date.now()): string => span(Math.max(0, (now - Date.parse(from)) / 1000));

export function span(seconds: number): string {
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}

export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit++;
  }
  return `${unit === 0 ? count : count.toFixed(1)} ${units[unit]}`;
}

/** The time of day, as this person's clock shows it, with the date if that is another day. */
export function clock(at: string, now = Date.now()): string {
  const [day, time] = new Date(at).toLocaleString("sv").split(" ");
  return day === new Date(now).toLocaleDateString("sv") ? time! : `${day} ${time}`;
}

export const when = (at: string, now: number): string => `${age(at, now)} ago, ${clock(at, now)}`;

/** The stream that an offset counts unless another is named. */
export const mainStream = (session: Session): string => (session.tty ? "tty" : "stdout");
