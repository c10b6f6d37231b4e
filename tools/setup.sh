#!/usr/bin/env bash
# Makes .venv: the package in editable mode and the tools pinned in requirements/dev.txt.
# Does nothing when nothing has changed since the last time. Usage: tools/setup.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
asked=${1:-}
venv=.venv
stamp=$venv/setup.stamp

# The interpreter itself, never the version manager's shim in front of it.
real_python() {
    "$1" -c 'import sys; sys.exit(1) if sys.version_info < (3, 11) else print(sys.executable)' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${asked:-python3 python3.13 python3.12 python3.11 python}; do
        real_python "$candidate" && return
    done
    echo "no Python 3.11 or later${asked:+ at $asked}: name one with make PYTHON=/path/to/python3" >&2
    return 1
}

base_of() { "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null; }

usable() {
    [[ -x $venv/bin/python ]] && base_of "$venv/bin/python" >/dev/null || return 1
    # Scripts in a virtual environment carry its absolute path.
    [[ ! -e $stamp || $(head -n 1 "$stamp") == "$PWD" ]] || return 1
    [[ -z $asked || $(base_of "$venv/bin/python") == "$(base_of "$asked")" ]]
}

make_venv() {
    local python
    python=$(find_python)
    echo "creating $venv with $python"
    rm -rf "$venv"
    if "$python" -c 'import ensurepip; ensurepip.version()' 2>/dev/null; then
        "$python" -m venv "$venv"
    # Debian keeps ensurepip in a package of its own; the pip that is here can fill the environment as well.
    elif ! { "$python" -m venv --without-pip "$venv" && "$python" -m pip --python "$venv/bin/python" install -q pip; }; then
        rm -rf "$venv"
        echo "$python cannot make a virtual environment: install python3-venv (or python3-pip)" >&2
        return 1
    fi
}

if [[ -n $asked ]]; then asked=$(find_python); fi
exec 9<"$0"
if command -v flock >/dev/null; then flock 9; fi

usable || make_venv
contents="$PWD
$(cat pyproject.toml requirements/dev.txt tools/setup.sh | sha256sum)"
[[ -e $stamp && $(<"$stamp") == "$contents" ]] && exit 0

"$venv/bin/python" -m pip install -q --compile -r requirements/dev.txt
# The build backend is among the pinned tools, so an isolated build would only fetch another one.
"$venv/bin/python" -m pip install -q --no-deps --no-build-isolation -e .
"$venv/bin/python" -m compileall -q src
printf '%s\n' "$contents" >"$stamp"
echo "ready: $("$venv/bin/python" --version) in $venv"
