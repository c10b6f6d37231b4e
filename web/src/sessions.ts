// Every session the page knows, kept up to date by the server's events; which of them are shown, and in which order.
import { useEffect, useRef, useState } from "preact/hooks";
import { go, isLink, sessionOf } from "./address";
import { connection, distrust, Gone, get, type Listener, machineOf, parse, send } from "./api";
import { Cell, useCell } from "./cell";
import { isLive, look, needsSomebody, type Session, title } from "./model";

interface Page {
  items: Session[];
  next: string | null;
  unavailable: { node?: string; why: string; seen_at: string | null }[];
  unreachable_nodes?: Record<string, number>;
  truncated?: string[];
}

export const sessions = new Cell<ReadonlyMap<string, Session>>(new Map());
export const isLoaded = new Cell(false);
export const announcement = new Cell("");
/** How many nodes do not answer, by reason. */
export const unreachable = new Cell<Record<string, number>>({});
/** Whether other machines have older sessions that are not listed. */
export const hasOlder = new Cell(false);

const FLUSH_MS = 100;
const PAGE = 200;
let changed = new Map<string, Session | null>();
let timer = 0;

/** The session that the address names by id or name. */
export function current(): Session | undefined {
  const reference = sessionOf(location.pathname);
  return sessions.value.get(reference ?? "") ?? [...sessions.value.values()].find((each) => reference && each.name && (each.node ? `${each.node}/` : "") + each.name === reference);
}

/** A session of a node that this home visits is listed once: as the visit, which can be previewed. */
export function listed(all: ReadonlyMap<string, Session>): Session[] {
  return [...all.values()].filter((each) => !each.node || all.get(each.id.slice(each.node.length + 1))?.place !== each.place);
}

async function* pages(query: Record<string, string> = {}, most = Infinity): AsyncGenerator<Page> {
  let after: string | null = null;
  for (let page = 0; page < most; page++) {
    const asked: URLSearchParams = new URLSearchParams({ ...query, limit: String(PAGE), ...(after && { after }) });
    const answer: Page = await get<Page>(`/v1/sessions?${asked}`);
    yield answer;
    after = answer.next;
    if (!after) return;
  }
}

function change(id: string, session: Session | null): void {
  changed.set(id, session);
  timer ||= window.setTimeout(flush, FLUSH_MS);
}

function flush(): void {
  timer = 0;
  const next = new Map(sessions.value);
  for (const [id, session] of changed) {
    if (session) next.set(id, session);
    else next.delete(id);
  }
  changed = new Map();
  show(next);
}

function show(next: ReadonlyMap<string, Session>): void {
  sessions.set(next);
  const asking = listed(next).filter(needsSomebody).length;
  document.title = asking ? `(${asking}) Holdfast` : "Holdfast";
}

export const listener: Pick<Listener, "reset" | "session"> = {
  async reset() {
    const found = new Map<string, Session>();
    for await (const { items } of pages()) {
      for (const each of items) found.set(each.id, each);
      // The first time, rows are shown as they come.
      if (!isLoaded.value) show(new Map(found));
    }
    changed = new Map();
    // Sessions of nodes stay until their nodes have been asked again.
    for (const [id, each] of sessions.value) if (each.node) found.set(id, each);
    show(found);
    isLoaded.set(true);
    void followNodes();
  },
  session({ change: what, ...event }) {
    const session = ofNode(event.node, event as Session);
    const before = changed.get(session.id) ?? sessions.value.get(session.id);
    if (what === "removed") {
      change(session.id, null);
      if (before) announce(`${title(before)}: removed`);
      return;
    }
    change(session.id, session);
    const { word } = look(session);
    if (!before || look(before).word !== word) announce(`${title(session)}: ${word}`);
  },
};

// Sessions of nodes: the newest, those that run, and what changes, while the page is visible. Their ids are `NODE/ID`.

const NODES_MS = 2000;
const MOST_PAGES = 5;
let mostPages = MOST_PAGES;
let isFollowing = false;

/** Follow the nodes for as long as the page is open, if this home has any. */
async function followNodes(): Promise<void> {
  // The token of a link is for one session of this home.
  if (isLink || isFollowing) return;
  isFollowing = true;
  const nodes = await get<{ items: object[] }>("/v1/nodes").catch(() => null);
  isFollowing = !!nodes?.items.length;
  while (isFollowing && connection.value.is !== "signed-out") {
    if (document.visibilityState === "visible") await heardOfNodes().catch(distrust);
    await new Promise((done) => setTimeout(done, NODES_MS));
  }
}

/** Until the page is hidden, or the stream ends. When a node starts or stops answering, all are listed again. */
async function heardOfNodes(): Promise<void> {
  const hidden = new AbortController();
  const { signal } = hidden;
  document.addEventListener("visibilitychange", () => hidden.abort(), { signal });
  let listing = 0;
  try {
    const stream = await send("GET", "/v1/events?types=node", undefined, {}, signal);
    await readNodes();
    for await (const event of parse(stream)) {
      if (event.name === "session") listener.session(JSON.parse(event.data));
      else if (event.name === "node" || event.name === "reset") {
        listing ||= window.setTimeout(() => {
          listing = 0;
          readNodes().catch(() => hidden.abort());
        }, NODES_MS);
      }
    }
  } finally {
    clearTimeout(listing);
    hidden.abort();
  }
}

/** A session as the page knows it: the id of one of a node has the name of the node. */
export const ofNode = (node: string | null | undefined, session: Session): Session =>
  node ? { ...session, node, id: `${node}/${session.id}`, place: `node:${node}` } : session;

async function readNodes(): Promise<void> {
  const there = new Set<string>();
  const away = new Map<string, { why: string; seen_at: string | null }>();
  let isCut = false;
  const take = (answer: Page): void => {
    for (const each of answer.unavailable) if (each.node) away.set(each.node, { why: `${each.node} does not answer: ${each.why}`, seen_at: each.seen_at });
    for (const each of answer.items.filter((one) => one.node)) {
      const found = ofNode(each.node, each);
      const id = found.id;
      there.add(id);
      const why = away.get(each.node!);
      const shown: Session = { ...found, ...(why && isLive(each) && { state: "unreachable", metadata: { ...each.metadata, ...why } }) };
      if (JSON.stringify(shown) !== JSON.stringify(sessions.value.get(id))) change(id, shown);
    }
    const counts = answer.unreachable_nodes ?? {};
    if (JSON.stringify(counts) !== JSON.stringify(unreachable.value)) unreachable.set(counts);
    isCut = !!answer.next || !!answer.truncated;
  };
  for await (const answer of pages({ nodes: "all" }, mostPages)) take(answer);
  hasOlder.set(isCut);
  if (isCut) for await (const answer of pages({ nodes: "all", state: "running" }, MOST_PAGES)) take(answer);
  for (const [id, each] of sessions.value) if (each.node && !there.has(id) && !away.has(each.node)) change(id, null);
}

export async function readOlder(): Promise<void> {
  mostPages += MOST_PAGES;
  await readNodes();
}

const SENTENCE_MS = 1000;
const MOST_SENTENCES = 5;
let waiting: string[] = [];
let speaking = 0;

/** For screen readers, at most one sentence a second; later ones are only counted. */
export function announce(text: string): void {
  waiting.push(text);
  speaking ||= window.setTimeout(speak, 0);
}

function speak(): void {
  speaking = waiting.length ? window.setTimeout(speak, SENTENCE_MS) : 0;
  if (waiting.length > MOST_SENTENCES) waiting = [`${waiting.length} changes of sessions`];
  const next = waiting.shift();
  if (next) announcement.set(next);
}

/** Open the next session that needs a person, or the previous one. */
export function nextThatAsks(current: string | null, step: 1 | -1): void {
  const asking = [...sessions.value.values()].filter(needsSomebody).map((each) => each.id).sort();
  const at = current ? asking.indexOf(current) : -1;
  const next = asking.at((at + step + asking.length) % Math.max(1, asking.length));
  if (next) go(`/s/${next}`);
}

// Filters

export const FILTERS = ["q", "state", "owner", "label", "place", "sort", "group"] as const;
export type Filter = Record<(typeof FILTERS)[number], string>;
export const ORDERS = ["activity", "ended", "name"];
export const GROUPS = ["owner", "label", "place", "none"];

/** Sections of the list and chips above it: what a person looks for first comes first. */
export const SECTIONS: [key: string, name: string, glyph: string, tone: string][] = [
  ["waiting", "Needs you", "◆", "ask"],
  ["running", "Running", "●", "busy"],
  ["failed", "Failed", "✗", "bad"],
  ["ended", "Ended", "✓", "off"],
];

export function sectionOf(session: Session): string {
  if (needsSomebody(session)) return "waiting";
  return isLive(session) ? "running" : look(session).tone === "bad" ? "failed" : "ended";
}

export function filterOf(query: URLSearchParams): Filter {
  return Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""])) as Filter;
}

export interface Found {
  /** Null before the first answer. The previous result stays until the next one. */
  ids: Set<string> | null;
  error: unknown;
  busy: boolean;
}

/** What the server's own search finds, asked again when sessions come or go and when the server answers again. */
export function useFound(q: string, count: number): Found {
  const [found, setFound] = useState<Omit<Found, "busy"> & { q: string }>({ ids: null, error: null, q: "" });
  const { is } = useCell(connection);
  useEffect(() => {
    if (!q) return setFound({ ids: null, error: null, q });
    let isCurrent = true;
    const ask = async (): Promise<void> => {
      const ids = new Set<string>();
      for await (const { items } of pages({ q })) for (const each of items) ids.add(each.id);
      // As many pages as the page knows of sessions of nodes.
      if ([...sessions.value.values()].some((each) => each.node)) {
        for await (const { items } of pages({ q, nodes: "all" }, MOST_PAGES)) {
          for (const each of items) {
            const session = ofNode(each.node, each);
            ids.add(session.id);
            // An older one, which the list did not have.
            if (!sessions.value.has(session.id)) change(session.id, session);
          }
        }
      }
      if (isCurrent) setFound({ ids, error: null, q });
    };
    ask().catch((error) => isCurrent && !(error instanceof Gone) && setFound((before) => ({ ...before, error, q })));
    return () => void (isCurrent = false);
  }, [q, count, is]);
  return { ...found, busy: found.q !== q };
}

export const labelsOf = (session: Session): string[] => Object.entries(session.labels).map((pair) => pair.join("="));

export function chosen(all: Iterable<Session>, filter: Filter, found: Set<string> | null): Session[] {
  const rows = [...all].filter(
    (each) =>
      (!found || found.has(each.id)) &&
      (!filter.state || sectionOf(each) === filter.state) &&
      (!filter.owner || each.owner === filter.owner) &&
      (!filter.place || each.place === filter.place) &&
      (!filter.label || labelsOf(each).includes(filter.label)),
  );
  const key = KEYS[filter.sort] ?? KEYS["created"]!;
  const ranked = new Map(rows.map((each) => [each, [rank(each, filter.group), each.needs_input ? 0 : needsSomebody(each) ? 1 : 2, key(each)] as const]));
  return rows.sort((a, b) => {
    const [one, other] = [ranked.get(a)!, ranked.get(b)!];
    return compare(one[0], other[0]) || one[1] - other[1] || compare(one[2], other[2]) || compare(b.created_at, a.created_at) || compare(a.id, b.id);
  });
}

function rank(session: Session, by: string): string {
  return by ? groupOf(session, by) : String(SECTIONS.findIndex(([key]) => key === sectionOf(session)));
}

/** The heading that a row stands under. */
export function groupOf(session: Session, by: string): string {
  if (by === "owner") return session.owner ?? "no owner";
  if (by === "place") return session.place;
  if (by === "label") return labelsOf(session)[0] ?? "no label";
  return by ? "" : SECTIONS.find(([key]) => key === sectionOf(session))![1];
}

const compare = (a: string | number, b: string | number): number => (a < b ? -1 : a > b ? 1 : 0);
const newest = (time: string | null): number => -Date.parse(time ?? "1970-01-01");

const KEYS: Record<string, (session: Session) => string | number> = {
  created: (each) => newest(each.created_at),
  activity: (each) => newest(each.last_output_at),
  ended: (each) => newest(each.ended_at),
  name: (each) => each.name ?? "\uffff",
};

// Text of screens, by reading

const MOST_SCREENS = 32;
const PAUSE_MS = 1000;
// Tiles come into view one by one: ask for several at once.
const GATHER_MS = 50;

interface Screens {
  texts: Record<string, string>;
  error: unknown;
}

/** The screens or last lines of these sessions: one request a second for all of them, none while nothing grew. Machines
 * take turns. */
export function useScreens(wanted: Session[]): Screens {
  const [shown, setShown] = useState<Screens>({ texts: {}, error: null });
  const { current: known } = useRef({ read: new Map<string, string>(), turns: new Map<string, number>(), asked: 0, busy: false });
  useEffect(() => {
    const grown = wanted.filter((each) => known.read.get(each.id) !== grownTo(each) && !(each.node && each.state === "unreachable"));
    if (!grown.length || known.busy || document.visibilityState !== "visible") return;
    const apis = [...new Set(grown.map((each) => machineOf(each.id).api))];
    const api = apis.reduce((one, other) => ((known.turns.get(other) ?? 0) < (known.turns.get(one) ?? 0) ? other : one));
    const now = grown.filter((each) => machineOf(each.id).api === api).slice(0, MOST_SCREENS);
    const ask = (): void => {
      known.asked = Date.now();
      known.turns.set(api, known.asked);
      known.busy = true;
      get<{ items: { text?: string }[] }>(`${api}/screens?ids=${now.map((each) => machineOf(each.id).own).join(",")}`)
        .then(
          ({ items }) => {
            for (const each of now) known.read.set(each.id, grownTo(each));
            setShown(({ texts }) => ({ texts: { ...texts, ...Object.fromEntries(now.map((each, index) => [each.id, items[index]?.text ?? ""])) }, error: null }));
          },
          (error) => setShown(({ texts }) => ({ texts, error })),
        )
        .finally(() => (known.busy = false));
    };
    const timer = setTimeout(ask, Math.max(GATHER_MS, known.asked + PAUSE_MS - Date.now()));
    return () => clearTimeout(timer);
  });
  return shown;
}

const grownTo = (session: Session): string => `${Object.values(session.ends)} ${session.size}`;
