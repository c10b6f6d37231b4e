// Notifications of the browser, only after a click asked for them, and only for sessions that are not in view.
import { address, go } from "./address";
import type { SignalRecord } from "./api";
import { Cell } from "./cell";
import { fieldsOf, placeOf } from "./inbox";
import { plain } from "./model";
import { current, sessions } from "./sessions";

export const notifications = new Cell<NotificationPermission>("Notification" in globalThis ? Notification.permission : "denied");
const SHOWN = new Set(["lifecycle", "needs_input", "health"]);

let registration: ServiceWorkerRegistration | null = null;

navigator.serviceWorker?.addEventListener("message", ({ data }) => {
  const url = new URL(String(data), location.origin);
  go(url.pathname, Object.fromEntries(url.searchParams));
});

export function askToNotify(): void {
  void Notification.requestPermission().then(async (permission) => {
    notifications.set(permission);
    if (permission === "granted") await register();
  });
}

async function register(): Promise<ServiceWorkerRegistration | null> {
  const path = document.querySelector<HTMLMetaElement>("meta[name=nonce]")?.content;
  if (!path || !navigator.serviceWorker) return null;
  const types = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: object): { createScriptURL(url: string): string } } }).trustedTypes;
  const url = types ? types.createPolicy("holdfast-worker", { createScriptURL: () => path }).createScriptURL(path) : path;
  registration = await navigator.serviceWorker.register(url, { scope: "/" });
  return registration;
}

// The session in view is a lock that other tabs can see: the browser releases it when the tab ends.
let inView = "";
let leave = (): void => undefined;
const looked = (): void => {
  const id = document.visibilityState === "visible" ? (current()?.id ?? "") : "";
  if (id === inView) return;
  inView = id;
  leave();
  const over = new Promise<void>((done) => (leave = done));
  if (id) void navigator.locks?.request(`view:${id}`, { mode: "shared" }, () => over);
};
address.watch(looked);
sessions.watch(looked);
document.addEventListener("visibilitychange", looked);

export function notify(signal: SignalRecord): void {
  if (notifications.value !== "granted" || inView === signal.session || !SHOWN.has(signal.variant)) return;
  const fields = fieldsOf(signal);
  const isEnd = signal.variant === "lifecycle" && fields["phase"] === "ended";
  const { offset, stream } = placeOf(signal);
  // An end opens where it happened; a question opens live, where it can be answered.
  const data = `/s/${signal.session}${isEnd && offset !== null ? `?${new URLSearchParams({ at: String(offset), of: stream })}` : ""}`;
  const state = isEnd ? fields["status"] : (fields["phase"] ?? fields["state"] ?? signal.variant.replaceAll("_", " "));
  const text = localStorage.getItem("notify") === "text" && !fields["secret"] && typeof fields["line"] === "string" ? fields["line"] : "";
  void (async () => {
    if ((await navigator.locks.query()).held?.some((each) => each.name === `view:${signal.session}`)) return;
    const worker = registration ?? (await register());
    // The tag is the signal: several tabs show it once.
    await worker?.showNotification(plain(`${sessions.value.get(signal.session)?.name ?? signal.session}: ${state}`), { tag: signal.id, body: plain(text), data });
  })();
}
