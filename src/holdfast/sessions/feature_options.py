"""The options of a start that its runner acts on later: watches, monitors, timers, probes, restarts.

They are checked before anything exists, and go into the spec with the limits of the configuration.
"""

from __future__ import annotations

from ..errors import BadArgument
from ..model import seconds
from ..model.options import OPTIONS
from ..model.session import shown
from ..runner.features import patterns, probes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..config import Config
    from ..model.options import StartOptions


if TYPE_CHECKING:
    Spec = dict[str, Any]

_BEFORE_MAX = 5
_STREAMS = ("any", "stdout", "stderr", "tty")
_PROBES_MAX = 8
# The words that name a probe, each with the parts that it may have.
_PROBE_PARTS = {
    "port": ("port", "host"),
    "http": ("http", "statuses"),
    "line": ("line",),
    "told": ("told",),
    "command": ("command",),
}
_LIMIT_LEAST_S, _LIMIT_MOST_S = 1.0, 3600.0
_MONITOR_COUNTS = ("batch_ms", "bucket")
_MONITOR_TIMES = ("refill_s", "digest_after", "digest_every", "calm")


def feature_options(options: StartOptions, config: Config, notes: list[str]) -> Spec:
    """The part of the spec for these options. `notes` gets a line for each value that was changed."""
    spec: Spec = {
        "watch": _watch(options.get("watch"), config),
        "monitor": _monitor(options.get("monitor"), config),
        "heartbeat": _heartbeat(options.get("heartbeat"), config, notes),
        "soft": _duration("soft", options.get("soft")),
        "ready": _ready(options.get("ready"), config),
        "health": _health(options.get("health"), config),
        "restart": _restart(options, config),
    }
    if spec["heartbeat"] is not None:
        spec["notify"] = "exit"
    if spec["monitor"] is not None:
        spec["timeout"] = _monitor_limit(options, config, notes)
    return spec


def given_again(spec: Mapping[str, Any]) -> Spec:
    """The options that the spec has in another form, as they would be given."""
    options: Spec = {}
    if spec.get("watch"):
        options["watch"] = [_given(each) for each in spec["watch"]["patterns"]]
    if spec.get("monitor"):
        parts = ("persistent", "on_flood", *_MONITOR_COUNTS, *_MONITOR_TIMES)
        kept = {part: spec["monitor"][part] for part in parts}
        chosen = {part: [_given(each) for each in spec["monitor"][part]] for part in ("include", "exclude")}
        options["monitor"] = {**kept, **chosen}
    if spec.get("ready"):
        ready = spec["ready"]
        given = [{"line": _given(each["line"])} if "line" in each else each for each in ready["probes"]]
        options["ready"] = {ready["mode"]: given, "timeout": ready["timeout"], "owner_check": ready["owner_check"]}
    if spec.get("health"):
        health = spec["health"]
        options["health"] = {**health["probe"], "interval": health["interval"], "misses": health["misses"]}
    return options


def _given(pattern: Mapping[str, Any]) -> Spec:
    return {part: value for part, value in pattern.items() if part != "id" and value is not None}


def _monitor_limit(options: StartOptions, config: Config, notes: list[str]) -> float | None:
    """How long a monitor runs: its own limit, within bounds, unless it is persistent."""
    given = options.get("monitor")
    asked = options.get("timeout") or (given.get("limit") if isinstance(given, dict) else None)
    if isinstance(given, dict) and given.get("persistent"):
        if asked is not None:
            notes.append("a persistent monitor has no limit: the one that was given is ignored")
        return None
    if asked is None:
        return float(config.monitor_limit)
    limit = seconds(asked, "timeout")
    bounded = min(max(limit, _LIMIT_LEAST_S), _LIMIT_MOST_S)
    if bounded != limit:
        bounds = f"{_LIMIT_LEAST_S:g} to {_LIMIT_MOST_S:g} s"
        notes.append(f"a monitor's limit is {bounds}: {limit:g} s became {bounded:g} s")
    return bounded


def pattern(given: object, argument: str, number: int = 1) -> Spec:
    """One pattern as the runner wants it: from a literal, from `/regex/i`, or from its parts."""
    if isinstance(given, str):
        given = _from_text(given)
    if not isinstance(given, dict):
        raise BadArgument(
            argument, f"{shown(given)} is not a pattern", "give text, /regex/, or {literal or regex, ...}"
        )
    unknown = set(given) - {"literal", "regex", "stream", "ignore_case", "once", "before"}
    if unknown:
        raise BadArgument(argument, f"{min(unknown)!r} is not a part of a pattern", "literal, regex, stream, once")
    texts = [given[part] for part in ("literal", "regex") if given.get(part) is not None]
    if len(texts) != 1 or not isinstance(texts[0], str) or not texts[0]:
        raise BadArgument(argument, "a pattern has either a literal or a regex", 'such as "error" or "/error/i"')
    stream, before = given.get("stream", "any"), given.get("before", 0)
    if stream not in _STREAMS:
        raise BadArgument(argument, f"no stream {shown(stream)}", f"one of {', '.join(_STREAMS)}")
    if not isinstance(before, int) or isinstance(before, bool) or not 0 <= before <= _BEFORE_MAX:
        raise BadArgument(argument, f"before is 0 to {_BEFORE_MAX} lines, not {shown(before)}", "leave it out")
    checked = {
        "id": f"w{number}",
        "literal": given.get("literal"),
        "regex": given.get("regex"),
        "stream": stream,
        "ignore_case": bool(given.get("ignore_case", False)),
        "once": bool(given.get("once", False)),
        "before": before,
    }
    try:
        patterns.check(checked)
    except patterns.BadPattern as problem:
        raise BadArgument(argument, f"{shown(texts[0])}: {problem}", "give a literal, or a simpler regex") from None
    return checked


def _from_text(text: str) -> Spec:
    body, slash, flags = text[1:].rpartition("/")
    if text.startswith("/") and slash and body and flags in ("", "i"):
        return {"regex": body, "ignore_case": flags == "i"}
    return {"literal": text}


def _patterns(given: object, argument: str) -> list[Spec]:
    if given is None:
        return []
    if isinstance(given, (str, dict)):
        given = [given]
    if not isinstance(given, (list, tuple)):
        raise BadArgument(argument, f"{shown(given)} is not a list of patterns", 'such as ["error", "/warn/i"]')
    if len(given) > patterns.PATTERNS_MAX:
        raise BadArgument(argument, f"{len(given)} patterns are too many", f"give at most {patterns.PATTERNS_MAX}")
    return [pattern(each, argument, number) for number, each in enumerate(given, 1)]


# As a number, which runners of every release understand.
_NO_LIFETIME = 1 << 53


def _watch(given: object, config: Config) -> Spec | None:
    found = _patterns(given, "watch")
    if not found:
        return None
    return {"patterns": found, **watch_limits(config)}


def watch_limits(config: Config) -> Spec:
    return {
        "interval": config.watch_interval,
        "strikes": config.watch_strikes,
        "lifetime": config.watch_lifetime or _NO_LIFETIME,
        "gather_ms": config.watch_gather_ms,
        "partial_ms": config.watch_partial_ms,
        # Only runners of releases up to 0.2 read it.
        "breaker": {"scope": "owner", "max": 15, "window": 10.0, "cooldown": 30.0},
    }


def _monitor(given: object, config: Config) -> Spec | None:
    if given is None or given is False:
        return None
    known = ("include", "exclude", "persistent", "on_flood", "limit", *_MONITOR_COUNTS, *_MONITOR_TIMES)
    asked = _parts("monitor", {} if given is True else given, known)
    on_flood = asked.get("on_flood", config.monitor_on_flood)
    if on_flood not in ("digest", "stop"):
        raise BadArgument("monitor", f"on_flood is not {shown(on_flood)}", "give digest or stop")
    return {
        "include": _patterns(asked.get("include"), "monitor"),
        "exclude": _patterns(asked.get("exclude"), "monitor"),
        "persistent": bool(asked.get("persistent", False)),
        "on_flood": on_flood,
        **{part: _count("monitor", asked.get(part, getattr(config, f"monitor_{part}"))) for part in _MONITOR_COUNTS},
        **{part: _duration("monitor", asked.get(part, getattr(config, f"monitor_{part}"))) for part in _MONITOR_TIMES},
    }


def _heartbeat(given: object, config: Config, notes: list[str]) -> float | None:
    interval = _duration("heartbeat", given)
    if interval is not None and interval < config.session_heartbeat_floor:
        floor = config.session_heartbeat_floor
        notes.append(f"a heartbeat comes at most every {floor:g} s: {interval:g} s became {floor:g} s")
        return float(floor)
    return interval


def _ready(given: object, config: Config) -> Spec | None:
    if given is None:
        return None
    mode, timeout, owner_check = "all", config.session_ready_timeout, True
    asked_for: object = given
    if isinstance(given, dict) and ({"all", "any"} & set(given)):
        asked = _parts("ready", given, ("all", "any", "timeout", "owner_check"))
        if "all" in asked and "any" in asked:
            raise BadArgument("ready", "`all` and `any` cannot be combined", "give one of them")
        mode = "all" if "all" in asked else "any"
        asked_for = asked[mode]
        timeout = _duration("ready", asked.get("timeout")) or timeout
        owner_check = bool(asked.get("owner_check", True))
    elif isinstance(given, dict):
        timeout = _duration("ready", given.get("timeout")) or timeout
        owner_check = bool(given.get("owner_check", True))
        asked_for = {part: value for part, value in given.items() if part not in ("timeout", "owner_check")}
    listed = list(asked_for) if isinstance(asked_for, (list, tuple)) else [asked_for]
    if not 0 < len(listed) <= _PROBES_MAX:
        raise BadArgument("ready", f"{len(listed)} probes", f"give 1 to {_PROBES_MAX}")
    return {
        "mode": mode,
        "probes": [_checked(each, "ready") for each in listed],
        "timeout": timeout,
        "owner_check": owner_check,
    }


def _health(given: object, config: Config) -> Spec | None:
    if given is None:
        return None
    interval, misses = config.session_health_interval, config.session_health_misses
    probe: object = given
    if isinstance(given, dict):
        interval = _duration("health", given.get("interval")) or interval
        misses = given.get("misses", misses)
        if not isinstance(misses, int) or isinstance(misses, bool) or misses < 1:
            raise BadArgument("health", f"misses is a number above 0, not {shown(misses)}", "such as 3")
        probe = {part: value for part, value in given.items() if part not in ("interval", "misses")}
    checked = _checked(probe, "health")
    if "line" in checked:
        raise BadArgument("health", "is checked by a command, a port or a URL", "such as port:3000")
    return {"probe": checked, "interval": interval, "misses": misses}


def _checked(given: object, argument: str) -> Spec:
    probe = _probe(given, argument)
    try:
        probes.check(probe)
    except probes.BadProbe as problem:
        raise BadArgument(argument, str(problem), "such as port:3000 or http://127.0.0.1:3000/health") from None
    return probe


def _probe(given: object, argument: str) -> Spec:
    described = shown(given)
    if isinstance(given, str):
        word, _, rest = given.partition(":")
        given = {word: rest if word != "port" or not rest.isdecimal() else int(rest)}
    if not isinstance(given, dict):
        raise BadArgument(argument, f"{described} is not a probe", "give port:3000, http:URL or line:PATTERN")
    for word, parts in _PROBE_PARTS.items():
        if word in given:
            _parts(argument, given, parts)
    if "port" in given:
        port, host = given["port"], given.get("host", "localhost")
        if not isinstance(port, int) or not 1 <= port <= 65535 or not isinstance(host, str):
            raise BadArgument(argument, f"{shown(port)} is not a port", "give a number from 1 to 65535")
        return {"port": port, "host": host}
    if "http" in given:
        url = str(given["http"])
        url = url if "://" in url else f"http:{url}"
        statuses = given.get("statuses", [])
        if not url.startswith(("http://", "https://")) or not all(isinstance(each, int) for each in statuses):
            raise BadArgument(argument, f"{shown(url)} is not a URL", "such as http://127.0.0.1:3000/health")
        return {"http": url, "statuses": list(statuses)}
    if "line" in given:
        return {"line": pattern(given["line"], argument)}
    if given.get("told") is True:
        return {"told": True}
    if "command" in given and argument == "health":
        command = given["command"]
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
            raise BadArgument(argument, f"{shown(command)} is not a command", "give a list of words, or text")
        return {"command": argv}
    raise BadArgument(argument, f"{described} is not a probe", "give port:3000, http:URL or line:PATTERN")


def _restart(options: StartOptions, config: Config) -> Spec | None:
    given = options.get("restart")
    if given is None or given == "never":
        return None
    asked: Mapping[str, Any] = {"policy": given} if isinstance(given, str) else given
    parts = ("delay", "delay_max", "reset_after", "window")
    known = ("policy", "attempts", "in_a_row", "success_codes", "final_codes", "reset_on_ready", *parts)
    asked = _parts("restart", asked, known)
    policy = asked.get("policy", "on-failure")
    if policy not in OPTIONS["restart"].words:
        raise BadArgument("restart", f"{shown(policy)} is not a policy", f"give {', '.join(OPTIONS['restart'].words)}")
    if policy == "never":
        return None
    if options.get("pass_fds"):
        raise BadArgument("restart", "cannot be combined with pass_fds", "leave pass_fds out")
    if options.get("lifetime") == "call":
        raise BadArgument("restart", "cannot be combined with lifetime='call'", "give `detached` or `owner`")
    attempts, in_a_row = asked.get("attempts", config.restart_attempts), asked.get("in_a_row")
    for part, number in (("attempts", attempts), ("in_a_row", 1 if in_a_row is None else in_a_row)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise BadArgument("restart", f"{part} is a number above 0, not {shown(number)}", "such as 5")
    return {
        "policy": policy,
        "success_codes": _codes(asked.get("success_codes", config.restart_success_codes)),
        "final_codes": _codes(asked.get("final_codes", config.restart_final_codes)),
        "reset_on_ready": bool(asked.get("reset_on_ready", options.get("ready") is not None)),
        "attempts": attempts,
        "in_a_row": in_a_row,
        **{part: seconds(asked.get(part, getattr(config, f"restart_{part}")), f"restart.{part}") for part in parts},
    }


def _codes(given: object) -> list[int]:
    listed = given.split(",") if isinstance(given, str) else given
    try:
        return [int(code) for code in listed]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise BadArgument("restart", f"{shown(given)} is not a list of exit codes", "such as [0]") from None


def _parts(argument: str, given: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadArgument(argument, f"{shown(given)} cannot be understood", f"give {{{', '.join(known)}}}")
    unknown = sorted(map(str, set(given) - set(known)))
    if unknown:
        raise BadArgument(argument, f"no part {unknown[0]!r}", f"one of {', '.join(known)}")
    return dict(given)


def _count(argument: str, given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise BadArgument(argument, f"{shown(given)} is not a whole number above 0", "such as 10")
    return given


def _duration(argument: str, given: object) -> float | None:
    if given is None:
        return None
    found = seconds(given, argument)
    if found <= 0:
        raise BadArgument(argument, "must be above 0", "give a time such as 60 or 5m")
    return found
