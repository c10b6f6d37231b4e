"""Foreign text on its way out: secrets are replaced by a mark, and quoting keeps it from acting, hiding or imitating.

Files keep the truth; this is for drains, hooks, webhooks, HTTP and lists. All patterns run in a linear-time engine.
A secret that looks like any other text stays: this catches most secrets, not all. Lines stay lines, so that counts
and cursors still hold, and redacting a redacted text changes nothing.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol


# The one redaction on every way out: what looks like a secret is replaced by a mark.


if TYPE_CHECKING:

    class _Match(Protocol):
        @property
        def string(self) -> str: ...
        def group(self, number: int = ...) -> Any: ...
        def start(self, number: int = ...) -> int: ...
        def end(self, number: int = ...) -> int: ...

    class _Regexp(Protocol):
        def sub(self, repl: Callable[[_Match], str], text: str) -> str: ...

    Replacement = Callable[[_Match], str]

MARK = "[redacted]"
# After one rule replaced something, another may match what is left. More than two rounds are rare.
_ROUNDS_MAX = 4
# Records are nested far less.
_DEPTH_MAX = 64

# Nothing but a key looks like this; some have no digit.
_AWS_KEY = re.compile(r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}")
# Keys that can be recognised by their shape.
_SHAPES = (
    _AWS_KEY.pattern + r"\b",
    r"gh[pousr]_[A-Za-z0-9]{16,}",
    r"github_pat_[A-Za-z0-9_]{16,}",
    r"gl(?:pat|ptt|dt|rt|cbt|imt|ft|soat|agent|oas|ffct)-[A-Za-z0-9_-]{20,}",
    r"sk-[A-Za-z0-9_-]{16,}",
    r"(?:[rsp]k_(?:live|test)|whsec)_[A-Za-z0-9]{10,}",
    r"xox[a-z](?:\.[a-z]+)?-[A-Za-z0-9-]{8,}",
    r"xapp-[A-Za-z0-9-]{8,}",
    r"AIza[A-Za-z0-9_-]{30,}",
    r"ya29\.[A-Za-z0-9_-]{16,}",
    r"GOCSPX-[A-Za-z0-9_-]{16,}",
    r"npm_[A-Za-z0-9]{20,}",
    r"pypi-[A-Za-z0-9_-]{16,}",
    r"hf_[A-Za-z0-9]{16,}",
    r"do[opr]_v1_[a-f0-9]{32,}",
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"hv[sbr]\.[A-Za-z0-9_-]{16,}",
    r"AGE-SECRET-KEY-1[0-9A-Za-z]{16,}",
    r"[0-9]{8,10}:[A-Za-z0-9_-]{35}\b",
    r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){1,4}",
)
# A value assigned to such a name is a secret; the word may be followed by a part that says of what.
_TELLING = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?"
    r"|(?:api|access|auth|account|private|signing|encryption|master|service)[_-]?key)"
)
_NAME = rf"[A-Za-z0-9_.-]*{_TELLING}(?:[_.-][A-Za-z0-9_.-]*)?"
# Quoted, in some languages after a letter or two, or bare.
_VALUE = r"""(?:[bBfFrRuU]{0,2}(?:"(?:[^"\\\n]|\\[^\n])+"|'(?:[^'\\\n]|\\[^\n])+')|`[^`\n]+`|[^\s"',;&]+)"""
# Endings of names whose value is not a secret.
_HARMLESS_ENDS = frozenset(
    """file path stdin prompt env name url uri type length count id ttl header headers field label placeholder regex
    pattern error errors message msg title hint help format prefix suffix param params column table kind class expires
    expiry expiration at in time timeout size limit max min len version endpoint host port service provider store
    manager factory required enabled valid policy scheme mode strength rules index offset start end pos""".split()  # noqa: SIM905
)
_HARMLESS_VALUES = frozenset(("{}", "include", "omit", "same-origin"))
# Words of programming languages in the place of a value: the value follows them, or they are its type.
_LANGUAGE = frozenset(
    """none null nil true false undefined void any auto const let var mut static final public private readonly new
    await async yield return typeof instanceof not is if else elif unless in for while do function func fn def
    impl dyn lambda self this super cls ref move raise throw pass continue break case default match when select
    from import export where and or str string bytes text bool boolean int integer long short double float number
    char byte object array list dict map set tuple optional option secretstr secretstring uuid date datetime time
    varchar rune error never unknown symbol buffer blob json i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 usize
    isize int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 size_t uint8_t uint32_t uint64_t int32_t
    int64_t""".split()  # noqa: SIM905
)
_WORD_FOR_SECRETS = re.compile(r"(?i)passw|passphrase|pwd|secret|token|credential|auth|(?:^|[_. -])key")
_CHAIN = re.compile(r"(?:[A-Za-z_]+[0-9]?)(?:\??\.[A-Za-z_]+[0-9]?)+")
_IDENTIFIER = re.compile(r"[A-Za-z_]+[0-9]?")
_SEVERAL_WORDS = re.compile(
    r"[a-z]+(?:[A-Z][a-z]+)+|[A-Z][a-z]+(?:[A-Z][a-z]+)+|_*[a-z]+(?:_[a-z]+)+_*|[A-Z]+(?:_[A-Z]+)+"
)
_INTERPOLATED = re.compile(r"[$#]\{|\$\(|\{[\w.!:]*\}|%(?:\(\w+\))?[sdvq]|<[\w -]+>")
_CASE_CHANGES = re.compile(r"[a-z][A-Z]|[A-Z][a-z]")
_SENTENCE_MARKS = str.maketrans("", "", " _?!.,'-")
_PROSE = re.compile(r" +[A-Za-z]+(?:[\s.!?]|$)")
_CODE_AFTER = re.compile(r"\s*(?:[,;)}|=?]|$)")
# So much text before and after a value decides whether it is code.
_AROUND_CHARS = 60

_A_COOKIE = re.compile(r"(?:^|[\s;])[\w.-]+=[^\s=;]")
_KEY_EDGE = re.compile(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"(?:[A-Za-z0-9+/=_-]+|[A-Z][A-Za-z-]+: [^\n]*)?")
_AROUND_KEY_LINE = " \t|>\"',"
_NAME_ALONE = re.compile(_NAME, re.IGNORECASE)
_SURROGATES = re.compile("[\ud800-\udfff]")


class Redactor:
    """Compiles its rules when it is first used."""

    __slots__ = ("_rules",)

    def __init__(self) -> None:
        self._rules: list[tuple[_Regexp, Replacement]] = []

    def __call__(self, text: str) -> str:
        if not text:
            return text
        if not self._rules:
            self._compile()
        if not text.isascii():
            text = _SURROGATES.sub("\ufffd", text)
        if "PRIVATE KEY" in text:
            text = _without_keys(text)
        for _ in range(_ROUNDS_MAX):
            before = text
            for regexp, replacement in self._rules:
                text = regexp.sub(replacement, text)
            if text == before:
                break
        return text

    def lines(self, lines: Sequence[str]) -> list[str]:
        """Lines that belong together: a key may take several. Returns as many lines."""
        return self("\n".join(line.replace("\n", " ") for line in lines)).split("\n") if lines else []

    def value(self, value: Any, depth: int = 0) -> Any:
        """A copy of a JSON value, with its texts redacted, and with all values under the name of a secret replaced."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {key: self._under(key, each, depth) for key, each in value.items()}
        if not isinstance(value, (list, tuple)):
            return value
        if depth >= _DEPTH_MAX:
            return MARK
        if value and all(isinstance(each, str) for each in value):
            return self.lines(value)
        if value and all(isinstance(each, dict) and isinstance(each.get("text"), str) for each in value):
            texts = self.lines([each["text"] for each in value])
            rest = (self.value({**each, "text": ""}, depth + 1) for each in value)
            return [{**each, "text": text} for each, text in zip(rest, texts, strict=True)]
        return [self.value(each, depth + 1) for each in value]

    def _under(self, key: object, value: Any, depth: int) -> Any:
        if isinstance(value, (dict, list, tuple)):
            return self.value(value, depth + 1) if depth < _DEPTH_MAX else MARK
        if isinstance(key, str) and isinstance(value, str) and _NAME_ALONE.fullmatch(key) and _holds(key, value):
            return MARK
        return self.value(value)

    def _compile(self) -> None:
        import re2  # type: ignore[import-untyped]

        options = re2.Options()
        options.log_errors = False
        self._rules = [(re2.compile(pattern, options), replacement) for pattern, replacement in _RULES]


def _second_marked(found: _Match) -> str:
    """What comes before the secret stays, and what ends it."""
    return f"{found.group(1)}{MARK}{found.group(3) or ''}"


def _assigned(found: _Match) -> str:
    """`name=value`, quoted or not, where the name is that of a secret."""
    whole: str = found.group(0)
    name, between, value = found.group(1), found.group(2), found.group(3)
    letters = len(value) - len(value.lstrip("bBfFrRuU")) if value[-1] in "\"'" else 0
    quote = value[letters] if value[-1] in "\"'`" and len(value) > letters + 1 and value[letters] == value[-1] else ""
    bare = value[letters + 1 : -1] if quote else value
    if not _holds(name, bare) or (not quote and _is_code(found, name, between, value)):
        return whole
    return f"{name}{between}{value[:letters] if quote else ''}{quote}{MARK}{quote}"


def _is_code(found: _Match, name: str, between: str, value: str) -> bool:
    """Whether a bare value is part of a program, or of a sentence, that names a secret without containing it."""
    if (
        any(each in value for each in "()[]{}<>`")
        or "->" in value
        or value[0] in "=:"
        or value.strip("=?!|*+-/.") == ""
    ):
        return True
    if value.rstrip(".:").lower() in _LANGUAGE or _CHAIN.fullmatch(value):
        return True
    text, sign = found.string, between.strip(" \t\"'")
    after = text[found.end() : found.end() + _AROUND_CHARS]
    if value.lower() in ("b", "f", "r", "u", "rb", "br", "fr", "rf") and after[:1] in ("'", '"'):
        return True  # an empty string, or one that goes over several lines
    if _IDENTIFIER.fullmatch(value) is None:
        return False
    if _WORD_FOR_SECRETS.search(value):
        return True
    if sign == ":":
        spaced = between[-1] in " \t"
        return (spaced and _PROSE.match(after) is not None) or _ends_as_code(after, several=value)
    if sign == "=" and between[-1] not in " \t":
        begin = found.start()
        before = text[max(0, begin - _AROUND_CHARS) : begin].rpartition("\n")[2]
        return "(" in before and after[:1] in (",", ")")
    if sign in ("=", ":=", "=>"):
        return len(value) <= 3 or _ends_as_code(after, several=value)
    return sign == "" and value.isupper()  # an option and the placeholder of its value in a usage line


def _ends_as_code(after: str, *, several: str) -> bool:
    punctuated = after.lstrip(" \t")[:1] in (";", ")", "}", ",", "|", "=", "?")
    return punctuated or (_SEVERAL_WORDS.fullmatch(several) is not None and _CODE_AFTER.match(after) is not None)


def _holds(name: str, value: str) -> bool:
    """Whether what is assigned to this name is a secret at all."""
    name = name.lower()
    end = name.replace("-", "_").replace(".", "_").rpartition("_")[2]
    if end in _HARMLESS_ENDS or value.lower() in _HARMLESS_VALUES or value.lower() in _LANGUAGE:
        return False
    if _stands_for_one(value):
        return False
    if name.endswith("pwd") and value.startswith("/"):
        return False  # the working directory
    if "token" in name and value.isdecimal() and len(value) < 8:
        return False  # how many of them
    # A call; or an asterisk for each character: it was taken out already.
    return "(" not in value and any(map(str.isalnum, value))


def _is_placeholder(value: str) -> bool:
    return value[0] in "$<{%" or _INTERPOLATED.search(value) is not None


def _stands_for_one(value: str) -> bool:
    """A variable, a placeholder, the name of a secret."""
    named = value.translate(_SENTENCE_MARKS).isalpha() and _WORD_FOR_SECRETS.search(value) is not None
    return named or _is_placeholder(value)


def _known_by_shape(found: _Match) -> str:
    """Keys are random: words of a program that begin alike have no digits, and few changes of case."""
    before, key = found.group(1), found.group(2)
    is_random = any(map(str.isdecimal, key)) or len(_CASE_CHANGES.findall(key)) >= 4 or _AWS_KEY.fullmatch(key)
    return f"{before}{MARK if is_random else key}"


def _unless_placeholder(found: _Match) -> str:
    return found.group(0) if _is_placeholder(found.group(2).strip("\"'") or " ") else _second_marked(found)


def _authorization(found: _Match) -> str:
    """What follows `authorization` without a scheme may as well be code."""
    value = found.group(2)
    is_code = any(each in value for each in "()[]{}<>`") or _CHAIN.fullmatch(value) or _SEVERAL_WORDS.fullmatch(value)
    return found.group(0) if is_code else _unless_placeholder(found)


def _cookie(found: _Match) -> str:
    """Cookies are `name=value`."""
    return _second_marked(found) if _A_COOKIE.search(found.group(2)) else found.group(0)


def _bearer(found: _Match) -> str:
    before, value = found.group(1), found.group(2)
    is_word = _is_placeholder(value) or (len(value) < 24 and not any(map(str.isdecimal, value)))
    return f"{before}{value if is_word else MARK}"


def _user(found: _Match) -> str:
    """`user:password`; two numbers are a user and a group."""
    before, value = found.group(1), found.group(2)
    return f"{before}{value if value.isdecimal() or _is_placeholder(value) else MARK}"


_AUTHORIZATION = r"""(?i)(\bauthorization["']?[ \t]*[:=][ \t]*["']?"""
_RULES: tuple[tuple[str, Replacement], ...] = (
    # With the letters right after it: a second pass must not find a part of it.
    (rf"(^|[^A-Za-z0-9])((?:{'|'.join(_SHAPES)})[A-Za-z0-9_-]*)", _known_by_shape),
    (r"(hooks\.slack\.com/[a-z]+/|/api/webhooks/[0-9]+/)([A-Za-z0-9/_-]+)()", _second_marked),
    (r"(://[^\s/?#@:\"'<>]*:)([^\s/?#@\"'<>]+)(@)", _unless_placeholder),
    (_AUTHORIZATION + r"(?:digest|aws4-hmac-sha256)[ \t]+)([^\n]+)()", _second_marked),
    (_AUTHORIZATION + r"(?:bearer|basic|token|apikey|negotiate|ntlm)[ \t]+)([^\s\"',;]+)()", _unless_placeholder),
    (_AUTHORIZATION + r")([^\s\"',;]{12,})()", _authorization),
    (r"(?i)(\bcookie[\"']?[ \t]*:[ \t]*)([^\s\"'][^\n\"']*)()", _cookie),
    (r"(?i)(\bbearer[ \t]+)([A-Za-z0-9._~+/=-]{12,})", _bearer),
    (rf"(?i)({_NAME})([\"']?[ \t]*(?::=|=>|=|:)[ \t]*)({_VALUE})", _assigned),
    (rf"(?i)(--{_NAME})([ \t]+)({_VALUE})", _assigned),
    (r"(\bsshpass[ \t]+-p[ \t]*)([^\s]+)()", _unless_placeholder),
    (r"((?:^|\s)(?:-u|--user|--proxy-user)[ =]?[^\s:\"'=-][^\s:\"']*:)([^\s\"']+)", _user),
)


def _without_keys(text: str) -> str:
    """Replace each line of a private key: those between its edges, or next to the only edge."""
    lines = text.split("\n")
    last_end = max((n for n, line in enumerate(lines) if "-----END " in line and _KEY_EDGE.search(line)), default=-1)
    inside = False
    hidden: set[int] = set()
    for number, line in enumerate(lines):
        edges = [found.group(1) for found in _KEY_EDGE.finditer(line)]
        if edges:
            if edges[0] == "END" and not inside:
                hidden.update(_key_lines(lines, range(number - 1, -1, -1)))
            lines[number] = _within_line(line, inside)
            inside = edges[-1] == "BEGIN"
            if inside and number >= last_end:
                hidden.update(_key_lines(lines, range(number + 1, len(lines))))
                inside = False
        elif inside and line.strip():
            hidden.add(number)
    for number in hidden:
        lines[number] = MARK
    return "\n".join(lines)


def _key_lines(lines: list[str], numbers: Iterable[int]) -> Iterable[int]:
    for number in numbers:
        line = lines[number]
        if line.strip() != MARK and _KEY_LINE.fullmatch(line.strip(_AROUND_KEY_LINE)) is None:
            return
        if line.strip():
            yield number


def _within_line(line: str, inside: bool) -> str:
    """The line of an edge, without the parts that belong to the key."""
    parts, at = [], 0
    for found in _KEY_EDGE.finditer(line):
        parts.append(_hide(line[at : found.start()]) if inside else line[at : found.start()])
        parts.append(found.group())
        inside, at = found.group(1) == "BEGIN", found.end()
    rest = line[at:]
    return "".join(parts) + (_hide(rest) if inside else rest)


def _hide(text: str) -> str:
    return MARK if text.strip(" \t\"',") else text


redact = Redactor()


# Quoting foreign text: it cannot act, hide, or look like anything that we wrote.
#
# Output, names and commands are data. Quoting removes what a terminal would obey, redacts, shows invisible characters,
# and keeps the text on its own lines.


PREFIX = "| "
# The longest prefix of a line.
_BEFORE_CHARACTERS = len(PREFIX + "(stderr) ")
LINE_CHARACTERS = 500
LABEL_CHARACTERS = 120
# A heading of ours: the longest text around its sentence, and the least that the sentence may have.
_AROUND_SENTENCE = 260
_SENTENCE_LEAST = 120
# Longer text is cut first; a record holds less.
_LOOKED_AT_CHARACTERS = 64 << 10

_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?"
    "|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Bidi controls, what has no width, selectors and tags that carry hidden text, fillers, halves of a pair. The selector
# after an emoji is kept: it is in every second message of a build tool, and says one thing only.
_HIDDEN = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_TAG = re.compile(r"<(?=[^\W\d_]|[/!?])")
# Half of an escape of ours, or half an entity, at a place where a line is cut.
_HALF = re.compile(r"(?:&l?t?|\\u?|\\u\{[0-9a-f]{0,6})\Z")
_PLAIN_WORD = re.compile(r"[\w.:@/+-]+", re.ASCII)
_BACKTICKS = re.compile("`+")


def clean_text(text: str) -> str:
    """Without escape sequences and control characters but TAB and LF; what a CR overwrote is gone."""
    text = text[:_LOOKED_AT_CHARACTERS]
    if text.isprintable():
        return text
    text = _CONTROLS.sub("", _SEQUENCES.sub("", text).replace("\r\n", "\n"))
    if "\r" in text:
        text = "\n".join(map(_overwritten, text.split("\n")))
    return text


def _overwritten(line: str) -> str:
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown


def escape_hidden(text: str) -> str:
    """With invisible characters as `\\u{...}`."""
    return text if text.isascii() else _HIDDEN.sub(lambda found: f"\\u{{{ord(found.group()):x}}}", text)


def without_tags(text: str) -> str:
    """No `<` in it opens or closes anything."""
    return _TAG.sub("&lt;", text) if "<" in text else text


def cut(text: str, limit: int) -> str:
    """At most so long, with a mark where it was longer."""
    if len(text) <= limit:
        return text
    mark = f" ...[{len(text)} characters in all]"
    if len(mark) > limit:
        mark = "..."
    return _HALF.sub("", text[: max(0, limit - len(mark))]) + mark


def fence(lines: Sequence[str]) -> str:
    """Longer than any run of backticks inside."""
    return "`" * max(3, 1 + max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0))


class Quoter:
    """`tags`: the message is made of tags. `guard`: how a line without a prefix may not begin."""

    __slots__ = ("_guard", "_label_chars", "_labels", "_line_chars", "_redact", "_tags", "plain")

    def __init__(
        self,
        redact: Redactor | Callable[[str], str],
        *,
        tags: bool,
        guard: re.Pattern[str] | None = None,
        plain: bool = False,
        line_chars: int = LINE_CHARACTERS,
        label_chars: int = LABEL_CHARACTERS,
    ) -> None:
        self._redact = redact
        self._tags = tags
        self._guard = guard
        self.plain = plain
        self._line_chars = line_chars
        self._label_chars = label_chars
        self._labels: dict[tuple[str, int], str] = {}

    def lines(self, texts: Sequence[str], limit: int | None = None) -> list[str]:
        """Each text as one line of a body, without its prefix. Returns as many lines."""
        if not texts:
            return []
        cleaned = [clean_text(text).rstrip().replace("\n", " ") for text in texts]
        redacted = self._redact("\n".join(cleaned)).split("\n")
        if len(redacted) != len(texts):
            # A redaction of the host's own that keeps no lines.
            redacted = [self._redact(line).replace("\n", " ") for line in cleaned]
        room = self._line_chars - _BEFORE_CHARACTERS
        return [self._escaped(line, room if limit is None else min(room, limit)) for line in redacted]

    def label(self, value: object, limit: int | None = None) -> str:
        """A name, a command, a pattern: on one line, and short."""
        if not isinstance(value, str):
            return ""
        limit = self._label_chars if limit is None else limit
        # The same few are asked for again and again while it is found out what fits.
        found = self._labels.get((value, limit))
        if found is None:
            text = self._redact(" ".join(clean_text(value).split())).replace("\n", " ")
            found = self._labels[value, limit] = self._escaped(text, limit)
        return found

    def word(self, value: object, limit: int | None = None) -> str:
        """A label between words of ours: in quotes, unless it is a plain word itself."""
        text = self.label(value, limit)
        return text if _PLAIN_WORD.fullmatch(text) else self.quoted(value, limit)

    def quoted(self, value: object, limit: int | None = None) -> str:
        return '"' + self.label(value, limit).replace('"', '\\"') + '"'

    def short(self, sentence: str) -> str:
        """A sentence of ours, so that the name before it and a cursor after it still fit on the line."""
        return cut(sentence, max(_SENTENCE_LEAST, self._line_chars - _AROUND_SENTENCE))

    def before(self, lines: Sequence[str], streams: Sequence[str] = ()) -> list[str]:
        """Body lines with their prefixes. `streams` are named where they are given."""
        marks = [f"({stream}) " if stream else "" for stream in streams] or [""] * len(lines)
        marked = [mark + line for mark, line in zip(marks, lines, strict=True)]
        if not self.plain:
            return [PREFIX + line for line in marked]
        return list(map(self.guarded, marked))

    def guarded(self, line: str) -> str:
        """Escape a line without a prefix that could be taken for the beginning or the end of a message."""
        return "\\" + line if self._guard is not None and self._guard.match(line) else line

    def _escaped(self, text: str, limit: int) -> str:
        text = escape_hidden(text)
        return cut(without_tags(text) if self._tags else text, limit)
