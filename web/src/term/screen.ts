// xterm.js as a pure display: it answers no query, opens nothing by itself and touches no clipboard or title.
import { FitAddon } from "@xterm/addon-fit";
import { Unicode11Addon } from "@xterm/addon-unicode11";
import { Terminal } from "@xterm/xterm";
import { findLinks, openLink } from "./links";
import { touchable } from "./touch";

export interface Screen {
  term: Terminal;
  fit: FitAddon;
  close: () => void;
}

const LINKS = /^(https?:|mailto:)/i;

/** The policy of the page allows a style element only with its nonce, and no style attribute that is set as text:
 * xterm.js makes three of the first, and one of the second for each run of text in one of 16 million colours. */
function stampStyles(): void {
  const nonce = document.querySelector<HTMLMetaElement>("meta[name=nonce]")?.nonce ?? "";
  const create = document.createElement.bind(document);
  document.createElement = ((name: string, options?: ElementCreationOptions) => {
    const element = create(name, options);
    if (element instanceof HTMLStyleElement) element.nonce = nonce;
    return element;
  }) as typeof document.createElement;
  const set = HTMLElement.prototype.setAttribute;
  HTMLElement.prototype.setAttribute = function (this: HTMLElement, name: string, value: string): void {
    if (name === "style") this.style.cssText = value;
    else set.call(this, name, value);
  };
}

let stamped = false;

const fontSize = (): number => Number(localStorage.getItem("font") ?? 13);

/** `refit` is called after the size of the font changed, which is the same for every terminal. A click on a link is an
 * event of the window: the page asks before it opens anything. */
export function openScreen(into: HTMLElement, options: { readOnly: boolean; refit: () => void }): Screen {
  if (!stamped) stampStyles();
  stamped = true;
  const term = new Terminal({
    allowProposedApi: true,
    cursorBlink: false,
    disableStdin: options.readOnly,
    drawBoldTextInBrightColors: false,
    fontFamily: "ui-monospace, 'SF Mono', 'Cascadia Mono', 'DejaVu Sans Mono', monospace",
    fontSize: fontSize(),
    scrollback: 10_000,
    theme: themeOf(into),
    linkHandler: { activate: (_event, target) => LINKS.test(target) && openLink(target), allowNonHttpProtocols: true },
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.loadAddon(new Unicode11Addon());
  term.unicode.activeVersion = "11";
  swallow(term);
  // The page handles the keys: Tab leaves the terminal.
  if (options.readOnly) term.attachCustomKeyEventHandler(() => false);
  term.open(into);
  findLinks(term);
  // For tests and for the browser's developer tools.
  Object.assign(into, { terminal: term });
  const recolour = (): void => void (term.options.theme = themeOf(into));
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", recolour);
  const observer = new MutationObserver(recolour);
  observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const settings = (): void => {
    if (term.options.fontSize === fontSize()) return;
    term.options.fontSize = fontSize();
    options.refit();
  };
  addEventListener("settings", settings);
  touchable(term, into);
  const close = (): void => {
    system.removeEventListener("change", recolour);
    removeEventListener("settings", settings);
    observer.disconnect();
    // What was written before is parsed later, and xterm.js cannot do that once it is gone.
    term.write("", () => setTimeout(() => term.dispose()));
  };
  return { term, fit, close };
}

/** Queries, clipboard, window operations, titles, pictures: the runner answers what is to be answered. */
function swallow(term: Terminal): void {
  const parser = term.parser;
  const done = (): boolean => true;
  for (const final of ["c", "n", "t", "x"]) {
    for (const prefix of ["", "?", ">", "="]) parser.registerCsiHandler(prefix ? { prefix, final } : { final }, done);
  }
  for (const prefix of ["", "?"]) parser.registerCsiHandler({ ...(prefix && { prefix }), intermediates: "$", final: "p" }, done);
  parser.registerCsiHandler({ prefix: ">", final: "q" }, done);
  parser.registerCsiHandler({ prefix: "?", final: "u" }, done);
  parser.registerDcsHandler({ intermediates: "$", final: "q" }, done);
  parser.registerDcsHandler({ intermediates: "+", final: "q" }, done);
  parser.registerDcsHandler({ final: "q" }, done);
  for (const number of [0, 1, 2, 9, 50, 52, 99, 777, 1337]) parser.registerOscHandler(number, done);
  for (const number of [4, 5, 10, 11, 12, 13, 14, 17, 19]) parser.registerOscHandler(number, (text) => text.includes("?"));
  parser.registerEscHandler({ final: "Z" }, done);
}

const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"] as const;

function themeOf(element: HTMLElement): Record<string, string> {
  // A custom property is given as it was written; only a colour that is used is resolved for the theme in force.
  const probe = element.appendChild(document.createElement("span"));
  const of = (name: string): string => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const theme: Record<string, string> = {
    background: of("--term-back"),
    foreground: of("--term-text"),
    cursor: of("--term-text"),
    cursorAccent: of("--term-back"),
    selectionBackground: of("--term-selection"),
  };
  COLOURS.forEach((name, index) => {
    theme[name] = of(`--term-${index}`);
    theme[`bright${name[0]!.toUpperCase()}${name.slice(1)}`] = of(`--term-${index + 8}`);
  });
  probe.remove();
  return theme;
}
