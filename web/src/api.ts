// The one way to the server: the token, problems, the proof before a secret is sent again, and events.
import { Cell } from "./cell";
import type { Session } from "./model";

export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  fix?: string;
  request_id?: string;
}

export class Refused extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }
  get slug(): string {
    return this.problem.type.replace("/problems/", "");
  }
}

/** The server does not answer at all. */
export class Gone extends Error {}

export type Connection =
  | { is: "connecting" }
  | { is: "live" }
  | { is: "gone"; since: number; next: number; found?: Problem }
  | { is: "signed-out"; why: string; fix: string };

export interface Info {
  version: string;
  features: string[];
  scopes: string[];
  label: string;
}

const KEY = "token";
const REVOKED = "This page is signed out: its token has ended or was revoked.";
export const connection = new Cell<Connection>({ is: "connecting" });
export const info = new Cell<Info | null>(null);

let token = sessionStorage.getItem(KEY);
// False after a connection was lost: another program may have taken the port.
let proven = true;

/** A connection was lost: before the secret is sent again, the server proves itself. */
export function distrust(): void {
  proven = false;
}

export function may(scope: string): boolean {
  return info.value?.scopes.includes(scope) ?? false;
}

/** Whether a button that changes something can work now. */
export function can(scope: string): boolean {
  return may(scope) && connection.value.is === "live";
}

// Without these features of the server the page cannot work.
const NEEDED = ["attach", "sessions", "output", "search", "screen", "frames", "signals", "consumers", "events"];

/** Why the page should be reloaded: the server has another version, or features that this page does not know. */
export const outdated = new Cell<{ version: string; lacks: string[] } | null>(null);

async function meet(): Promise<void> {
  const found = await get<Info>("/v1/info");
  const lacks = NEEDED.filter((each) => !found.features.includes(each));
  const isOther = info.value !== null && info.value.version !== found.version;
  // The version that this page was loaded from: if the server returns to it, no reload is needed.
  if (info.value) info.set({ ...found, version: info.value.version });
  else info.set(found);
  outdated.set(isOther || lacks.length ? { version: found.version, lacks } : null);
}

export function signOut(why: string, fix = "Run `hold open` and use the address that it prints."): void {
  token = null;
  sessionStorage.removeItem(KEY);
  connection.set({ is: "signed-out", why, fix });
}

/** Take the one-time code or a link's token out of the address bar, before any request. True if it signs in. */
async function takeSecret(): Promise<boolean> {
  const given = new URLSearchParams(location.hash.slice(1));
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  const code = given.get("code");
  const found = given.get("token") ?? (code && (await exchange(code)));
  if (found) keep(found);
  return !!found;
}

// Another address in the same tab: the page begins again with the new token.
addEventListener("hashchange", () => void takeSecret().then((isNew) => isNew && location.reload(), () => token || signOut("The server does not answer.")));

export async function signIn(): Promise<void> {
  await takeSecret();
  if (!token) {
    if (connection.value.is !== "signed-out") signOut("You are not signed in.");
    return;
  }
  await meet();
}

function keep(value: string): void {
  token = value;
  sessionStorage.setItem(KEY, value);
}

async function exchange(code: string): Promise<string | null> {
  try {
    return (await call<{ token: string }>("POST", "/v1/auth/exchange", { code })).token;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (!token) signOut("The code in this address is used or too old.");
    return null;
  }
}

export const get = <T>(path: string): Promise<T> => call<T>("GET", path);
export const post = <T>(path: string, body: object = {}): Promise<T> => call<T>("POST", path, body);
export async function getBytes(path: string, from: number, to: number): Promise<Uint8Array> {
  const answer = await send("GET", path, undefined, { Range: `bytes=${from}-${to - 1}` });
  return new Uint8Array(await answer.arrayBuffer());
}
export const put = <T>(path: string, body: object): Promise<T> => call<T>("PUT", path, body);
export const remove = (path: string): Promise<void> => call<void>("DELETE", path);

/** Of a session: its id on its own machine, and where the API of that machine is. A session of a node has the id `NODE/ID`. */
export function machineOf(id: string): { own: string; api: string } {
  const [own, node] = id.split("/").reverse();
  return { own: own!, api: node ? `/v1/nodes/${node}` : "/v1" };
}

export function sessionPath(id: string, rest = ""): string {
  const { own, api } = machineOf(id);
  return `${api}/sessions/${encodeURIComponent(own)}${rest}`;
}

async function call<T>(method: string, path: string, body?: object): Promise<T> {
  const answer = await send(method, path, body);
  if (answer.status === 204) return undefined as T;
  try {
    return (await answer.json()) as T;
  } catch {
    throw new Refused(broken(answer.status));
  }
}

export async function send(method: string, path: string, body?: object, extra: Record<string, string> = {}, signal?: AbortSignal): Promise<Response> {
  const isPublic = path.startsWith("/v1/auth/");
  if (!isPublic && token && !proven) await prove();
  const headers: Record<string, string> = { ...extra };
  if (token && !isPublic) headers["Authorization"] = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store", signal });
  } catch {
    proven = false;
    throw new Gone();
  }
  if (answer.ok) return answer;
  const refused = new Refused(await problemOf(answer));
  if (refused.slug === "unauthenticated" && !isPublic) signOut(REVOKED);
  throw refused;
}

async function problemOf(answer: Response): Promise<Problem> {
  try {
    const problem = (await answer.json()) as Problem;
    if (typeof problem.type === "string" && typeof problem.detail === "string") return problem;
  } catch {
    // Not a problem document: report the status.
  }
  return broken(answer.status);
}

const broken = (status: number): Problem => ({
  type: "/problems/error",
  title: "broken answer",
  status,
  detail: `The answer (${status}) is not in a form that this page knows.`,
  fix: "Try again; if it persists, check what is between this browser and `hold serve`, and the server's output.",
});

/** Ask the server to prove that it knows our secret, before the secret is sent to it again. */
async function prove(): Promise<void> {
  const [, id, ...rest] = (token ?? "").split("_");
  const secret = rest.join("_");
  const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
  let proof: string;
  try {
    proof = (await call<{ proof: string }>("POST", "/v1/auth/prove", { id, nonce })).proof;
  } catch (error) {
    if (error instanceof Gone) throw error;
    throw stranger();
  }
  const digest = await crypto.subtle.digest("SHA-256", encode(secret));
  const key = await crypto.subtle.importKey("raw", digest, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const wanted = await crypto.subtle.sign("HMAC", key, encode(`holdfast-server${location.origin}${nonce}`));
  if (proof !== hex(new Uint8Array(wanted))) throw stranger();
  proven = true;
}

function stranger(): Refused {
  return new Refused({
    type: "/problems/stranger",
    title: "another program answers",
    status: 0,
    detail: "The program that answers at this address could not prove that it is your server. Nothing secret was sent to it.",
    fix: "Check which program uses the port, and start `hold serve` again.",
  });
}

const encode = (text: string): Uint8Array<ArrayBuffer> => new TextEncoder().encode(text);
const hex = (data: Uint8Array): string => [...data].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// Events

export interface SignalRecord {
  id: string;
  session: string;
  variant: string;
  at: string;
  owner?: string | null;
  [key: string]: unknown;
}

export interface Listener {
  /** The list must be read again: at the beginning, after a reset, after another instance answered. */
  reset(): Promise<void>;
  session(session: Session & { change: string }): void;
  signal(signal: SignalRecord): void;
}

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;
let wake: (() => void) | null = null;

/** Try again now instead of at the next time. */
export function tryNow(): void {
  wake?.();
}

/** Follow the server's events for as long as the page is open. */
export async function follow(listener: Listener): Promise<void> {
  let found: Problem | undefined;
  let last: string | null = null;
  let wait = FIRST_WAIT_MS;
  let since = Date.now();
  for (const event of ["online", "pageshow"]) addEventListener(event, tryNow);
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && tryNow());
  for (;;) {
    try {
      const stream = await send("GET", "/v1/events", undefined, last ? { "Last-Event-ID": last } : {});
      if (connection.value.is !== "connecting") await meet();
      await listener.reset();
      wait = FIRST_WAIT_MS;
      found = undefined;
      connection.set({ is: "live" });
      for await (const event of parse(stream)) {
        if (event.id) last = event.id;
        if (event.name === "session") listener.session(JSON.parse(event.data));
        else if (event.name === "signal") listener.signal(JSON.parse(event.data));
        else if (event.name === "reset") await listener.reset();
        else if (event.name === "hello") last ??= position(event.data);
        else if (event.name === "bye" && JSON.parse(event.data).reason === "revoked") return signOut(REVOKED);
      }
    } catch (error) {
      if (error instanceof Refused && error.slug === "unauthenticated") return;
      found = error instanceof Refused ? error.problem : undefined;
    }
    proven = false;
    if (connection.value.is !== "gone") since = Date.now();
    const pause = wait * (0.75 + Math.random() / 2);
    connection.set({ is: "gone", since, next: Date.now() + pause, found });
    await new Promise<void>((done) => {
      const timer = setTimeout(done, pause);
      wake = () => {
        clearTimeout(timer);
        done();
      };
    });
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }
}

function position(hello: string): string {
  const { generation, pos } = JSON.parse(hello) as { generation: string; pos: number };
  return `${generation}:${pos}`;
}

interface ServerEvent {
  name: string;
  id: string;
  data: string;
}

export async function* parse(answer: Response): AsyncGenerator<ServerEvent> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event: ServerEvent = { name: "message", id: "", data: "" };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      if (line === "") {
        if (event.data) yield event;
        event = { name: "message", id: "", data: "" };
        continue;
      }
      const colon = line.indexOf(":");
      const field = line.slice(0, colon);
      const text = line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") event.name = text;
      else if (field === "id") event.id = text;
      else if (field === "data") event.data += text;
    }
  }
}
