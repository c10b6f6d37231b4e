// Shows notifications and opens what they are about. It has no fetch handler: the page is never served from a cache.
const worker = self as unknown as {
  addEventListener(type: string, handler: (event: any) => void): void;
  clients: { matchAll(options: object): Promise<{ focus(): Promise<unknown>; postMessage(url: string): void }[]>; openWindow(url: string): unknown };
};

worker.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const url = event.notification.data as string;
  event.waitUntil(
    worker.clients.matchAll({ type: "window", includeUncontrolled: true }).then(([open]) => {
      if (!open) return worker.clients.openWindow(url);
      // The page goes there itself: loading it again would lose what is open.
      open.postMessage(url);
      return open.focus().catch(() => undefined);
    }),
  );
});
