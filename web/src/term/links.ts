// Addresses in plain text. A click on one is an event of the window, as on a link that the program made: the page asks.
import type { ILink, Terminal } from "@xterm/xterm";

const ADDRESS = /\b(?:https?:\/\/|mailto:)[^\s"'<>`]+/gi;
// What ends a sentence or a bracket around the address is not part of it.
const BEHIND = /[.,;:!?\]}]+$/;
const BEHIND_BRACKET = /[.,;:!?)\]}]+$/;
// An address continues on wrapped rows; what is longer is cut.
const MOST_ROWS = 16;

export const openLink = (target: string): boolean => dispatchEvent(new CustomEvent("link", { detail: target }));

export function findLinks(term: Terminal): void {
  term.registerLinkProvider({ provideLinks: (row, found) => found(linksAround(term, row - 1)) });
}

function linksAround(term: Terminal, row: number): ILink[] {
  const buffer = term.buffer.active;
  let first = row;
  while (first > row - MOST_ROWS && buffer.getLine(first)?.isWrapped) first--;
  let text = "";
  // The cell of each character, counted from 1 as links are.
  const cells: { x: number; y: number }[] = [];
  for (let y = first; y <= row + MOST_ROWS && (y <= row || buffer.getLine(y)?.isWrapped); y++) {
    const line = buffer.getLine(y);
    for (let x = 0; line && x < line.length; x++) {
      const cell = line.getCell(x)!;
      if (cell.getWidth() === 0) continue;
      const characters = cell.getChars() || " ";
      for (let unit = 0; unit < characters.length; unit++) cells.push({ x: x + 1, y: y + 1 });
      text += characters;
    }
  }
  return [...text.matchAll(ADDRESS)].map(({ 0: match, index }) => {
    const target = match.replace(match.includes("(") ? BEHIND : BEHIND_BRACKET, "");
    return { text: target, range: { start: cells[index]!, end: cells[index + target.length - 1]! }, activate: () => openLink(target) };
  });
}
