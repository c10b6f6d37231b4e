#!/usr/bin/env bash
# Puts real MCP clients into build/clients/NAME, for the tests that drive them: those of `make test`, or with
# HOLDFAST_TESTS=all every one that tests/node/clients.txt names. Does nothing for one that is there; says so when npm is
# missing or reaches no registry: the tests that need it then say so too.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v npm >/dev/null || { echo "npm is missing: no MCP client is installed" >&2; exit 1; }
while read -r name package when; do
    [[ $name == \#* || -z $name ]] && continue
    [[ $when == always || ${HOLDFAST_TESTS:-} == all ]] || continue
    target=build/clients/$name
    [[ -e $target/stamp && $(<"$target/stamp") == "$package" ]] && continue
    rm -rf "$target"
    mkdir -p "$target"
    # The programs are native, and come in packages for each platform: those of other platforms npm leaves out. What the
    # scripts of a package would do is download or copy them once more.
    npm install --prefix "$target" --no-package-lock --include=optional --ignore-scripts --no-audit --no-fund \
        --loglevel=error "$package" >/dev/null
    echo "$package" >"$target/stamp"
done <tests/node/clients.txt
