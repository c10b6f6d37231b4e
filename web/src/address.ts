// The address holds what is shown, so that it survives a reload and can be shared.
import { Cell } from "./cell";

export interface Address {
  path: string;
  query: URLSearchParams;
}

const read = (): Address => ({ path: location.pathname, query: new URLSearchParams(location.search) });

/** Opened by an observer link: one session and nothing else. */
export const isLink = location.pathname === "/link";

// The filter of the list is kept for the next visit.
const FILTER = "filter";
export const listPath = (): string => `/${localStorage.getItem(FILTER) ?? ""}`;
export function keepFilter(filter: Record<string, string>): void {
  const text = new URLSearchParams(Object.entries(filter).filter(([, value]) => value)).toString();
  localStorage.setItem(FILTER, text && `?${text}`);
}
if (location.pathname === "/" && !location.search) history.replaceState(null, "", listPath() + location.hash);

export const address = new Cell<Address>(read());
addEventListener("popstate", () => address.set(read()));

/** `/s/NODE/ID` of a session of a node becomes `/n/NODE/s/ID`. A link stays at its address: it has only one session. */
export const placed = (path: string): string => (isLink ? path.replace(/^[^?]*/, "/link") : path.replace(/^\/s\/([a-z0-9-]+)\/(?=[^/]+$)/, "/n/$1/s/"));

export function go(path: string, query: Record<string, string> = {}, how: "push" | "replace" = "push"): void {
  const text = new URLSearchParams(query).toString();
  history[`${how}State`](null, "", text ? `${placed(path)}?${text}` : placed(path));
  address.set(read());
}

/** Change one part of the query; an empty value removes it. */
export function setQuery(changes: Record<string, string>, how: "push" | "replace" = "replace"): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  go(location.pathname, Object.fromEntries(query), how);
}

/** The session that the address names. */
export function sessionOf(path: string): string | null {
  const found = /^\/(?:n\/([^/]+)\/)?s\/([^/]+)$/.exec(path);
  return found ? (found[1] ? `${found[1]}/` : "") + decodeURIComponent(found[2]!) : null;
}
