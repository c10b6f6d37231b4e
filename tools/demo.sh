#!/usr/bin/env bash
# The main job, for real: start a command, kill the host that started it, find it again, read it whole, stop it.
# Everything happens in a temporary home that is gone afterwards. Exits non-zero when a step does not hold.
set -euo pipefail
cd "$(dirname "$0")/.."
hold=$PWD/.venv/bin/hold
python=$PWD/.venv/bin/python

place=$(mktemp -d)
mkdir -m 700 "$place/home" "$place/run" "$place/config"
export HOLDFAST_HOME=$place/home XDG_RUNTIME_DIR=$place/run XDG_CONFIG_HOME=$place/config
unset HOLDFAST_CONFIG

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '$ %s\n' "${*/#$hold/hold}"; "$@"; }
fail() { printf '\nFAILED: %s\n' "$*" >&2; exit 1; }
field() { "$hold" status --json ticker | "$python" -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

clean_up() {
    local status=$? entry
    "$hold" stop --all --grace 1s >/dev/null 2>&1 || true
    # The launcher would leave by itself after idling; a demonstration leaves nothing behind at all.
    for lock in "$place"/run/holdfast/launcher-*.lock; do
        # Its first word is the pid of the launcher that holds it.
        if read -r pid _ <"$lock"; then kill "$pid" || true; fi
    done 2>/dev/null
    rm -rf "$place"
    exit "$status"
}
trap clean_up EXIT

step "1. A host starts a ticking command and shows its output"
ticking='i=0; while :; do i=$((i + 1)); echo "tick $i"; sleep 0.1; done'
mkfifo "$place/screen"
echo "\$ hold run --name ticker -- sh -c '$ticking'"
"$hold" run --name ticker -- sh -c "$ticking" >"$place/screen" &
host=$!
exec 3<"$place/screen"
seen=
while [[ $seen != "tick 3" ]] && read -r -t 30 seen <&3; do echo "$seen"; done
[[ $seen == "tick 3" ]] || fail "the command printed nothing"
command=$(field pid)

step "2. The host is killed"
echo "\$ kill -KILL $host"
kill -KILL "$host"
wait "$host" 2>/dev/null || true
exec 3<&-

step "3. Another host finds the session again, still running, the same process"
show "$hold" ls
[[ $(field state) == running ]] || fail "the session is not running"
[[ $(field pid) == "$command" ]] || fail "the command is another process than before"

step "4. It waits for output that nobody was there to read"
show "$hold" wait ticker --match 'tick [0-9]*0$' --timeout 30s

step "5. It reads everything: no tick is missing, none came twice"
show "$hold" logs ticker -n 5
"$hold" logs ticker >"$place/log"
count=$(wc -l <"$place/log")
((count >= 10)) || fail "only $count lines in the log"
cmp "$place/log" <(seq -f 'tick %.0f' "$count") || fail "the log is not whole"
echo "($count lines, whole)"

step "6. It stops the session, and nothing is left"
id=$(field id)
show "$hold" stop ticker --grace 2s
show "$hold" status "$id"
"$hold" status --json "$id" | "$python" -c '
import json, sys
session = json.load(sys.stdin)
assert session["state"] == "exited" and session["status"] == "killed", session
assert session["exit"]["cause"] == "stop" and session["exit"]["survivors"] == [], session
' || fail "the record of its end is wrong"
[[ ! -e /proc/$command ]] || fail "process $command is still there"

step "All of it held."
