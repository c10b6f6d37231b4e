#!/usr/bin/env bash
# Puts the programs that tests/node/package.json names into build/node. Does nothing when they are there; says so when npm
# is missing or reaches no registry: the tests that need them then say so too.
set -euo pipefail
cd "$(dirname "$0")/.."
target=build/node
command -v npm >/dev/null || { echo "npm is missing: the MCP inspector and ajv are not installed" >&2; exit 1; }
contents=$(sha256sum <tests/node/package.json)
[[ -e $target/stamp && $(<"$target/stamp") == "$contents" ]] && exit 0
mkdir -p "$target"
cp tests/node/package.json "$target"
# Without a lock file: it would name every platform's native parts of a bundler that is not needed here.
npm install --prefix "$target" --no-package-lock --omit=optional --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
echo "$contents" >"$target/stamp"
