"""End sessions at once, with everything they started; with -s, send one operating-system signal and nothing more."""

from __future__ import annotations

from .door import here
from .ending import end_all
from .output import complain, say, say_json
from .parsing import Parser, add_json, add_sessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

USAGE = "[-s SIGNAL | -SIGNAL] [--target command|group|tree] ID... [--json]"
EXAMPLES = """
hold kill web
hold kill -HUP web                  as -s HUP or -1
hold kill -s USR1 --target tree web
"""


def understood(words: list[str]) -> list[str]:
    """`-9`, `-HUP` and `-SIGHUP` as `-s`, as every other `kill` takes them."""
    from ..runner.kernel_signals import NUMBERS

    found: list[str] = []
    for number, word in enumerate(words):
        if word == "--":
            return [*found, *words[number:]]
        name = word[1:].upper()
        named = name.isalnum() and ("SIG" + name in NUMBERS or name in NUMBERS)
        # -S alone is no signal, and so on: what is an option stays one.
        if word[:1] == "-" and word[1:2] != "-" and (word[1:].isdecimal() or named):
            found += ["-s", name]
        else:
            found.append(word)
    return found


def arrange(parser: Parser) -> None:
    parser.add_argument("-s", "--signal", metavar="SIGNAL", help="name or number, such as HUP, SIGUSR1 or 10")
    parser.add_argument(
        "--target",
        choices=("command", "group", "tree"),
        default="command",
        metavar="WHOM",
        help="who gets it: the command (default), its process group, or all it started: command, group, tree",
    )
    add_sessions(parser)
    add_json(parser, "what came of it, one entry for each")


def main(args: Namespace) -> int:
    with here(skip_unsafe=True) as hf:
        if args.signal is None:
            return end_all(hf, args.sessions, 0.0, as_json=args.json)
        from ..errors import HoldfastError

        signal: str | int = int(args.signal) if args.signal.isdecimal() else args.signal
        worst = 0
        answers: list[dict[str, Any]] = []
        for ref in args.sessions:
            try:
                session = hf.get(ref)
                sent = session.send_signal(signal, args.target)
            except HoldfastError as problem:
                worst = worst or problem.exit_code
                answers.append({"ref": ref, "sent": 0, "error": problem.to_json()})
                if not args.json:
                    complain(problem, as_json=False, options=("--signal",))
            else:
                answers.append({"ref": ref, "id": session.id, "sent": sent, "error": None})
                if not args.json:
                    say(f"{session.id}: sent to {sent} process{'' if sent == 1 else 'es'}")
        if args.json:
            say_json(answers)
    return worst
