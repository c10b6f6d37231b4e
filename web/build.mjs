// Bundles the page into the directory given, as the server delivers it: index.html, and assets with a hash in their
// names and a compressed copy beside each. The same tree gives the same bytes.
import { build } from "esbuild";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { gzipSync } from "node:zlib";

const target = process.argv[2] ?? "dist";
const here = new URL(".", import.meta.url).pathname;

const { outputFiles, metafile } = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx", style: "src/style.css", sw: "src/sw.ts" },
  outdir: "assets",
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022"],
  minify: true,
  legalComments: "none",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  metafile: true,
  write: false,
});

rmSync(target, { recursive: true, force: true });
mkdirSync(join(target, "assets"), { recursive: true });
const names = {};
for (const file of outputFiles) {
  const name = basename(file.path);
  names[name.replace(/-[A-Z0-9]+\./, ".")] = name;
  writeFileSync(join(target, "assets", name), file.contents);
  writeFileSync(join(target, "assets", name + ".gz"), gzipSync(file.contents, { level: 9 }));
}
const html = readFileSync(join(here, "src/index.html"), "utf8")
  .replaceAll("{app}", names["app.js"])
  .replaceAll("{style}", names["style.css"])
  .replaceAll("{sw}", names["sw.js"]);
writeFileSync(join(target, "index.html"), html);
if (process.argv.includes("--sizes")) {
  for (const [path, { bytes }] of Object.entries(metafile.outputs)) console.log(bytes, path);
}
