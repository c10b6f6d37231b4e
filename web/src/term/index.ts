export { Attachment } from "./attach";
export { LogView } from "./log";
export { Replay } from "./replay";
