// Small parts that several screens use.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Gone, get, Refused } from "./api";
import { go, placed } from "./address";
import { look, plain, type Session } from "./model";

/** Text that came from a program or a person: isolated, without control characters, not longer than a line. */
export function Text({ children, longest, class: name }: { children: string; longest?: number; class?: string }): JSX.Element {
  return <bdi class={name}>{plain(children, longest)}</bdi>;
}

export function State({ session, now }: { session: Session; now: number }): JSX.Element {
  const { glyph, word, tone } = look(session, now);
  return (
    <span class={`state ${tone}`}>
      <span aria-hidden="true">{glyph}</span> <Text>{word}</Text>
    </span>
  );
}

interface LinkProps {
  to: string;
  children: ComponentChildren;
  class?: string;
  current?: boolean;
  onFocus?: () => void;
  /** A row of the list: the session, and whether it is the one that keys act on. */
  row?: string;
  isCurrent?: boolean;
}

export function Link({ to, current, row, isCurrent, ...rest }: LinkProps): JSX.Element {
  const follow = (event: MouseEvent): void => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    const url = new URL(to, location.origin);
    go(url.pathname, Object.fromEntries(url.searchParams));
  };
  const ofRow = row ? { "data-id": row, "data-current": isCurrent ? "" : undefined, tabIndex: isCurrent ? 0 : -1 } : {};
  return <a href={placed(to)} onClick={follow} aria-current={current ? "page" : undefined} {...ofRow} {...rest} />;
}

/** A line to be copied. */
export function Copy({ text }: { text: string }): JSX.Element {
  const [isCopied, setIsCopied] = useState(false);
  return (
    <p class="copy">
      <code>{text}</code>
      <button onClick={() => void navigator.clipboard.writeText(text).then(() => setIsCopied(true))}>{isCopied ? "Copied" : "Copy"}</button>
    </p>
  );
}

export function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  return target.matches("input, textarea, select") || target.closest(".terminal") !== null || document.querySelector("dialog") !== null;
}

/** What the server answers, read when `path` changes and by `again`. */
export function useAnswer<T>(path: string | null): { answer: T | null; error: unknown; again: () => void; fail: (error: unknown) => void } {
  const [answer, setAnswer] = useState<T | null>(null);
  const [error, fail] = useState<unknown>(null);
  const again = (): void => {
    if (path === null) return;
    get<T>(path).then((found) => {
      setAnswer(found);
      fail(null);
    }, fail);
  };
  useEffect(again, [path]);
  return { answer, error, again, fail };
}

/** An error where it belongs: what happened and what to do. */
export function Trouble({ error, again }: { error: unknown; again?: () => void }): JSX.Element | null {
  if (!error) return null;
  const problem = error instanceof Refused ? error.problem : null;
  const detail = problem ? problem.detail : error instanceof Gone ? "The server does not answer." : String(error);
  return (
    <div class="trouble" role="alert">
      <strong>{problem?.title ?? "not possible now"}</strong>
      <p>
        <Text longest={1000}>{detail}</Text>
      </p>
      {problem?.fix && <p>{problem.fix}</p>}
      {problem?.request_id && <p class="dim">request {problem.request_id}</p>}
      {again && <button onClick={again}>Try again</button>}
    </div>
  );
}

/** The time, for ages, once a second while the page is visible. */
export function useNow(everyMs = 1000): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

export function Dialog(props: { title: string; close: () => void; children: ComponentChildren }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  const isGone = useRef(false);
  const close = (): void => (isGone.current ? undefined : props.close());
  useEffect(() => {
    const before = document.activeElement;
    const element = ref.current!;
    element.showModal();
    return () => {
      // Nothing under the dialog takes the focus while it is open.
      isGone.current = true;
      element.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog ref={ref} aria-label={props.title} onClose={close} onCancel={close}>
      <h2>{props.title}</h2>
      {props.children}
    </dialog>
  );
}

/** Shows nothing for a second, then what it is waiting for. */
export function Waiting({ what }: { what: string }): JSX.Element {
  const [isLate, setIsLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setIsLate(true), 1000);
    return () => clearTimeout(timer);
  }, []);
  return <main class="empty">{isLate && <p>Waiting for {what}…</p>}</main>;
}
