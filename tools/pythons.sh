#!/usr/bin/env bash
# Runs the suite on every Python that pyproject.toml names, each in a clone of the last commit under build/pythons.
# Usage: tools/pythons.sh [--only 3.12] [what `make unit` takes: T=tests/docs ARGS="-k tour"]
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
unset MAKEFLAGS MAKELEVEL
versions=$(sed -n 's/.*Python :: \(3\.[0-9][0-9]*\)".*/\1/p' pyproject.toml)
if [[ ${1:-} == --only ]]; then
    versions=$2
    shift 2
fi

find_python() {
    local candidate
    for candidate in "$(command -v "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        # A shim of a version manager stands there for every version and runs only some.
        "$candidate" -c "import sys; sys.exit(sys.version_info[:2] != (${1/./, }))" 2>/dev/null && echo "$candidate" && return
    done
    echo "no Python $1 on PATH or in pyenv" >&2
    return 1
}

failed=()
for version in $versions; do
    python=$(find_python "$version") || { failed+=("$version"); continue; }
    clone=build/pythons/$version
    rm -rf "$clone"
    git clone -q . "$clone"
    mkdir -p "$clone/build"
    for shared in node clients; do
        [[ ! -d build/$shared ]] || ln -s "$root/build/$shared" "$clone/build/$shared"
    done
    make -C "$clone" unit PYTHON="$python" "$@" || failed+=("$version")
done
[[ ${#failed[@]} == 0 ]] || { echo "failed on Python ${failed[*]}" >&2; exit 1; }
