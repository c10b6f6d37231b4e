"""The parser of one command, and the types of its arguments. Mistakes become errors with a fix."""

from __future__ import annotations

from ..errors import USAGE, BadArgument, HoldfastError
from ..model.session import nearest, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any


# The width of help where the terminal's is unknown, and the widest that is easy to read.
_WIDTH = 100
_WIDEST = 120
_HELP_COLUMN = 26

REFERENCE_HELP = "id, beginning of an id, name, service of the current project, pid, or `last`"

# Instead of a number of values: all words that follow, options too.
REST = "rest"


class Namespace:
    """The values of a command line, by the names of its arguments."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...


class Argument:
    """An option or a positional argument of a command. `nargs` is the number of its values: None for one, 0 for a
    switch, `?` for at most one, `*` for any, `+` for one or more, or REST."""

    def __init__(
        self,
        *names: str,
        action: str = "store",
        dest: str = "",
        nargs: int | str | None = None,
        const: object = True,
        default: Any = ...,
        type: Callable[[str], object] = str,
        choices: Collection[str] = (),
        metavar: str | None = None,
        help: str = "",
    ) -> None:
        self.option_strings = names if names[0].startswith("-") else ()
        # The long form is the last.
        self.dest = dest or names[-1].lstrip("-").replace("-", "_")
        self.nargs = 0 if action.startswith("store_") else nargs
        self.const = const if action != "store_false" else False
        # A switch that is not given is False, unless it has another default.
        self.default = (False if action == "store_true" else None) if default is ... else default
        self.appends = action == "append"
        self.choices = choices
        self.metavar = metavar
        self.help = help
        self._type = type

    @property
    def name(self) -> str:
        """As a message names it."""
        return "/".join(self.option_strings) or self.metavar or self.dest

    @property
    def placeholder(self) -> str:
        """What help shows for a value."""
        if self.metavar is None and self.choices:
            return "{" + ",".join(self.choices) + "}"
        return self.metavar or (self.dest.upper() if self.option_strings else self.dest)

    @property
    def shown(self) -> str:
        """`-s, --signal SIG`."""
        if not self.option_strings:
            return self.placeholder
        names = ", ".join(self.option_strings)
        return names if self.nargs == 0 else f"{names} {self.placeholder}"

    def value(self, word: str) -> object:
        found = self._type(word)
        if self.choices and found not in self.choices:
            choices = ", ".join(self.choices)
            raise _Wrong(
                f"argument {self.name}: invalid choice: {word!r} (choose from {choices})", [word], self.choices
            )
        return found


class _Wrong(Exception):
    """A mistake in a command line, in words; `words` are none of the `known` ones."""

    def __init__(self, message: str, words: Sequence[str] = (), known: Collection[str] = ()) -> None:
        super().__init__(message)
        self.words = words
        self.known = known


class _Missing(Exception):
    """Arguments that a command line lacks."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names


class Group:
    """Arguments under a title of the help. Of an `exclusive` group only one may be given."""

    def __init__(self, parser: Parser, title: str = "", *, exclusive: bool = False) -> None:
        self._parser = parser
        self.title = title
        self.exclusive = exclusive
        self.arguments: list[Argument] = []

    def add_argument(self, *names: str, **words: Any) -> None:
        argument = Argument(*names, **words)
        self.arguments.append(argument)
        self._parser.arguments.append(argument)

    def add_arguments(self, rows: Iterable[tuple[Sequence[str], dict[str, Any]]]) -> None:
        for names, words in rows:
            self.add_argument(*names, **words)


class Parser:
    """The parser of one command. Not `argparse`: importing that, and `re` for it, takes a quarter of the time of `hold
    ls`."""

    def __init__(self, program: str, usage: str, description: str, examples: str) -> None:
        self.program = program
        self.usage = "\n".join(" ".join(line.split()) for line in f"{program} {usage}".splitlines())
        self.description = description.strip()
        self.examples = examples.strip().splitlines()
        self.arguments: list[Argument] = []
        # The options that plain `--help` shows; empty for all.
        self.common: frozenset[str] = frozenset()
        self._groups: list[Group] = []
        self.add_argument("-h", "--help", action="store_true", help="show this help")
        self.add_argument("--help-all", dest="help", action="store_true", help="show every option and example")

    @property
    def options(self) -> dict[str, Argument]:
        return {name: argument for argument in self.arguments for name in argument.option_strings}

    def add_argument(self, *names: str, **words: Any) -> None:
        self.arguments.append(Argument(*names, **words))

    def add_group(self, title: str = "", *, exclusive: bool = False) -> Group:
        self._groups.append(Group(self, title, exclusive=exclusive))
        return self._groups[-1]

    def parse(self, words: list[str]) -> Namespace | None:
        """The values of a command line; None when it asks for help. Options may come between other words."""
        try:
            given, plain = self._split(words)
            if "help" in given:
                return None
            self._assign(given, plain)
        except _Missing as problem:
            says = f"the following arguments are required: {', '.join(problem.names)}"
            raise (no_session if "ID" in problem.names else usage)(says, self.program) from None
        except _Wrong as problem:
            raise usage(str(problem), self.program, problem.words, problem.known) from None
        args = Namespace()
        for argument in self.arguments:
            setattr(args, argument.dest, given.get(argument.dest, argument.default))
        return args

    def _split(self, words: list[str]) -> tuple[dict[str, Any], list[str]]:
        """The values of the options that are given, and the words that are not part of an option."""
        options = self.options
        takes_rest = any(argument.nargs == REST for argument in self.arguments)
        given: dict[str, Any] = {}
        used: dict[Group, Argument] = {}
        plain: list[str] = []
        unknown: list[str] = []
        words = list(words)
        while words:
            word = words.pop(0)
            if word == "--" or (takes_rest and not _is_option(word, options)):
                plain += [word, *words] if takes_rest else words
                break
            if not _is_option(word, options):
                plain.append(word)
                continue
            name, equals, value = word.partition("=")
            if not word.startswith("--"):
                # `-n5` and `-fn 5`: a value follows its option, or another option follows a switch.
                name, equals, value = word[:2], word[2:], word[2:].removeprefix("=")
            argument = options.get(name)
            if argument is None:
                unknown.append(word)
                continue
            if argument.dest == "help":
                return {"help": True}, []
            for group in self._groups:
                first = used.setdefault(group, argument) if argument in group.arguments else argument
                if group.exclusive and first is not argument:
                    raise _Wrong(f"argument {argument.name}: not allowed with argument {first.name}")
            if argument.nargs == 0:
                if equals and word.startswith("--"):
                    raise _Wrong(f"argument {argument.name}: ignored explicit argument {value!r}")
                if equals:
                    words.insert(0, f"-{equals}")
                given[argument.dest] = argument.const
                continue
            if not equals:
                if not words or _is_option(words[0], options):
                    raise _Wrong(f"argument {argument.name}: expected one argument")
                value = words.pop(0)
            if argument.appends:
                given.setdefault(argument.dest, []).append(argument.value(value))
            else:
                given[argument.dest] = argument.value(value)
        if unknown:
            names = [word.partition("=")[0] for word in unknown]
            raise _Wrong(f"unrecognized arguments: {' '.join(unknown)}", names, options)
        return given, plain

    def _assign(self, given: dict[str, Any], plain: list[str]) -> None:
        """Give the words that are not options to the positional arguments, in their order."""
        missing = []
        for argument in self.arguments:
            if argument.option_strings:
                continue
            if argument.nargs in ("*", "+", REST):
                taken, plain = plain, []
                given[argument.dest] = taken if argument.nargs == REST else [argument.value(word) for word in taken]
            elif plain:
                taken, plain = plain[:1], plain[1:]
                given[argument.dest] = argument.value(taken[0])
            else:
                taken = []
            if not taken and argument.nargs in (None, "+"):
                missing.append(argument.metavar or argument.dest)
        if missing:
            raise _Missing(missing)
        if plain:
            raise _Wrong(f"unrecognized arguments: {' '.join(plain)}", plain)

    def sections(self, *, whole: bool) -> dict[str, list[Argument]]:
        """The arguments that help shows, by title: with `whole` all of them."""
        titled = [group for group in self._groups if group.title]
        elsewhere = {argument for group in titled for argument in group.arguments}
        options = [each for each in self.arguments if each.option_strings and each not in elsewhere]
        sections = {"positional arguments": [each for each in self.arguments if not each.option_strings]}
        sections |= {"options": options, **{group.title: group.arguments for group in titled}}
        if self.common and not whole:
            listed = [each for part in sections.values() for each in part if self.common & {*each.option_strings}]
            sections = {"positional arguments": sections["positional arguments"], "common options": listed}
        return {title: arguments for title, arguments in sections.items() if arguments}

    def help(self, *, whole: bool = False) -> str:
        """Usage, two examples and the common options; `whole`: all of both."""
        width = help_width()
        sections = self.sections(whole=whole)
        column = min(max(len(each.shown) for part in sections.values() for each in part) + 4, _HELP_COLUMN)
        parts = [self._usage(width), wrapped(self.description, width)]
        for title, arguments in sections.items():
            parts.append(f"{title}:\n" + "".join(_described(each, column, width) for each in arguments))
        shown = self.examples if whole else self.examples[:2]
        examples = "examples:\n" + "".join(f"  {line}\n" for line in shown)
        return "\n".join([*parts, wrapped(examples, width)])

    def _usage(self, width: int) -> str:
        """A command may have several forms. Lines are not broken inside brackets."""
        head = "usage: "
        indent = " " * (len(head) + len(self.program) + 1)
        lines = []
        for form in self.usage.splitlines():
            lines += filled(head + _bracketed(form), width, indent if len(indent) < width // 2 else "    ")
            head = " " * len(head)
        return "\n".join(lines).replace(_JOINT, " ") + "\n"


def _is_option(word: str, options: Collection[str]) -> bool:
    """A lone `-`, a negative number, and text with a space are values."""
    is_number = word.isascii() and word[1:].replace(".", "", 1).isdecimal()
    is_text = " " in word and word.partition("=")[0] not in options
    return word.startswith("-") and word != "-" and not is_number and not is_text


def _described(argument: Argument, column: int, width: int) -> str:
    shown = f"  {argument.shown}"
    lines = filled(" ".join(argument.help.split()), max(width - column, 11))
    if len(shown) + 2 <= column and lines:
        shown = shown.ljust(column) + lines.pop(0)
    return "\n".join([shown, *(" " * column + line for line in lines)]) + "\n"


# In the place of a space at which no line is broken.
_JOINT = "\x1f"


def help_width() -> int:
    from .output import columns

    return min(columns() or _WIDTH, _WIDEST)


def wrapped(text: str, width: int) -> str:
    """Fill paragraphs to a width. An indented line, such as an example, stays on its own; a comment that does not fit
    goes below it."""
    out: list[str] = []
    paragraph: list[str] = []

    def close() -> None:
        if paragraph:
            out.extend(filled(" ".join(paragraph), width))
            paragraph.clear()

    for line in text.splitlines():
        if not line.strip() or line.startswith(" ") or line.endswith(":"):
            close()
            out.extend(_kept(line, width))
        else:
            paragraph.append(line)
    close()
    return "\n".join(out) + "\n"


def _kept(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if len(indent) > width // 3:
        indent = " " * 6  # a comment in its own column
    words, gap, comment = line.strip().partition("  ")
    lines = filled(indent + words, width, indent + "    ")
    return lines + (filled(indent + "    " + comment.strip(), width, indent + "    ") if gap else [])


def filled(text: str, width: int, indent: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def _bracketed(text: str) -> str:
    """Replace spaces inside brackets by joints."""
    depth = 0
    out = []
    for each in text:
        depth += (each == "[") - (each == "]")
        out.append(_JOINT if each == " " and depth else each)
    return "".join(out)


def usage(message: str, program: str, words: Sequence[str] = (), known: Collection[str] = ()) -> HoldfastError:
    """The error for a wrong command line; `words` in it are none of the `known` ones."""
    command = program.partition(" ")[2]
    error = HoldfastError(f"{command}: {message}" if command else message)
    error.code = "bad-request"
    error.exit_code = USAGE
    near = nearest(words[0], known) if words else None
    error.fix = f"did you mean `{near}`?" if near else f"see `{program} --help`"
    if words:
        from .other_tools import option

        fixes = {word: fix for word in words if (fix := option(command, word))}
        error.fix = "; ".join(fixes.values() if len(words) == 1 else map(": ".join, fixes.items())) or error.fix
    return error


def no_session(message: str, program: str) -> HoldfastError:
    """The error for a command line that names no session."""
    error = usage(message, program)
    error.fix = "name one: `hold ls` lists them, `last` is the newest"
    return error


def add_json(parser: Parser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print JSON: {what}")


def add_session(parser: Parser, nargs: str | None = None) -> None:
    parser.add_argument("session", type=_reference, metavar="ID", nargs=nargs, help=REFERENCE_HELP)


def add_sessions(parser: Parser, nargs: str = "+") -> None:
    parser.add_argument("sessions", type=_reference, metavar="ID", nargs=nargs, help=REFERENCE_HELP)


def _reference(text: str) -> str:
    """A reference to a session. A mistyped option is never taken for one: it could be stopped by mistake."""
    if text.startswith("-"):
        raise BadArgument("ID", f"{text[:80]!a} looks like an option, not a session", "see the options with --help")
    return text


def add_streams(parser: Parser) -> None:
    streams = parser.add_group(exclusive=True)
    for name in ("stdout", "stderr"):
        streams.add_argument(f"--{name}", dest="stream", action="store_const", const=name, help=f"only its {name}")


def duration(option: str) -> Callable[[str], float]:
    return lambda text: seconds(text, option)


def count(option: str, low: int = 0) -> Callable[[str], int]:
    """A whole number, `low` or more."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 19) or int(text) < low:
            raise BadArgument(option, f"{text[:80]!a} is not a whole number from {low} on", f"such as {max(low, 10)}")
        return int(text)

    return parse


def port(low: int = 0) -> Callable[[str], int]:
    """A port; 0, if it is allowed, takes a free one."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 6 and low <= int(text) < 1 << 16):
            free = "" if low else ", or 0 for a free one"
            raise BadArgument("--port", f"{text[:80]!a} is not a port number", f"give 1 to 65535{free}")
        return int(text)

    return parse


def pair(option: str) -> Callable[[str], tuple[str, str]]:
    """KEY=VALUE."""

    def parse(text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadArgument(option, f"{text[:80]!a} is not KEY=VALUE", f"such as {option} color=blue")
        return key, value

    return parse


def variable(name: str) -> str:
    if not name or "=" in name:
        raise BadArgument("--unset-env", f"{name[:80]!a} is not the name of a variable", "give one such as PATH")
    return name
