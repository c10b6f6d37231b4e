"""The configuration: defaults, file, environment, and everything that is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import config
from holdfast.config import SETTINGS, Config, line_of, load
from holdfast.errors import BadArgument, ConfigError
from support.world import World

ROOT = Path(__file__).resolve().parent.parent


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_reference", ROOT / "tools" / "config_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return str(path)


def _refusal(path: str) -> ConfigError | None:
    try:
        load({}, path)
    except ConfigError as error:
        return error
    return None


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    found = load({"HOME": str(tmp_path)})
    assert found.file is None
    assert found.log_session_cap == 64 << 20
    assert found.log_segment == 8 << 20
    assert found.log_home_cap == 4 << 30
    assert found.log_free_floor == 256 << 20
    assert found.log_keep == 7 * 86400
    assert (found.start_shell, found.start_grace, found.start_stdin) == ("/bin/sh", 5.0, "closed")
    assert found.start_oom_score_adj == 1000
    assert (found.launcher_enabled, found.launcher_spares, found.launcher_idle) == (True, 2, 600.0)
    assert (found.hosts_reply_timeout, found.hosts_sweep_timeout, found.hosts_start_timeout) == (
        10.0,
        2.0,
        10.0,
    )
    assert (found.collect_enabled, found.collect_interval) == (True, 600.0)
    assert found.cli_color == "auto"
    assert (found.people_command, found.people_webhooks) == (None, {})
    assert set(found.sources().values()) == {"default"}


def test_every_default_is_a_value_that_the_file_could_give() -> None:
    found = Config()
    for setting in SETTINGS:
        default = getattr(found, setting.attribute)
        taken = setting.value(setting.written())
        assert (setting.name, taken, type(taken)) == (setting.name, default, type(default))
        assert setting.value(default) == default


def test_file_is_found_by_variable_then_configuration_directory_then_user(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    for place in (tmp_path / ".config" / "holdfast", tmp_path / "xdg" / "holdfast"):
        place.mkdir(parents=True)
    (tmp_path / ".config" / "holdfast" / "config.toml").write_text("[launcher]\nspares = 3\n")
    (tmp_path / "xdg" / "holdfast" / "config.toml").write_text("[launcher]\nspares = 4\n")
    (tmp_path / "own.toml").write_text("[launcher]\nspares = 5\n")
    (tmp_path / "given.toml").write_text("[launcher]\nspares = 6\n")
    assert load(environ).launcher_spares == 3
    environ["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    assert load(environ).launcher_spares == 4
    environ["HOLDFAST_CONFIG"] = str(tmp_path / "own.toml")
    assert load(environ).launcher_spares == 5
    assert load(environ, str(tmp_path / "given.toml")).launcher_spares == 6


def test_environment_wins_over_file_and_sources_are_shown(tmp_path: Path) -> None:
    path = _write(tmp_path, '[log]\nsession_cap = "1M"\nkeep = 3600\n[collect]\nenabled = false\n')
    found = load({"HOLDFAST_LOG_SESSION_CAP": "2MiB", "HOLDFAST_LAUNCHER_ENABLED": "false"}, path)
    assert found.log_session_cap == 2 << 20
    assert found.log_keep == 3600
    assert found.collect_enabled is False
    assert found.launcher_enabled is False
    sources = found.sources()
    assert sources["log.session_cap"] == "env HOLDFAST_LOG_SESSION_CAP"
    assert sources["log.keep"] == f"file {path}:3"
    assert sources["log.segment"] == "default"
    assert found.to_json()["log"]["keep"] == 3600
    json.dumps(found.to_json())


def test_other_variables_of_ours_are_no_settings() -> None:
    load({"HOME": "/nonexistent", "HOLDFAST_HOME": "/x", "HOLDFAST_POINTS": "a=kill", "HOLDFAST_OFF": "pidfd"})
    # In the environment of every command, and so of a host that is started by one.
    load({"HOME": "/nonexistent", "HOLDFAST_SESSION_ID": "b7k2m9qa1"})


def test_chosen_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    for environ, path in (({"HOLDFAST_CONFIG": missing}, None), ({}, missing)):
        with pytest.raises(ConfigError, match="no such file") as caught:
            load(environ, path)
        assert caught.value.file == missing


def test_a_removed_setting_is_ignored_and_the_rest_of_the_file_holds(tmp_path: Path) -> None:
    text = '[breaker]\nmax = 15\nscope = "home"\n[terminal]\naudit_input = "full"\ndetach_key = "C-b"\n'
    found = load({"HOLDFAST_SIGNALS_CLAIM_LIMIT": "5"}, _write(tmp_path, text))
    assert found.terminal_detach_key == "C-b"
    assert found.ignored == ["breaker.max", "breaker.scope", "terminal.audit_input", "HOLDFAST_SIGNALS_CLAIM_LIMIT"]
    with pytest.raises(ConfigError, match="unknown section"):
        load({}, _write(tmp_path, "[breaker]\nmaximum = 15\n"))


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# \xe4\n")
    for path, why in ((tmp_path, "directory"), (tmp_path / "latin.toml", "UTF-8")):
        with pytest.raises(ConfigError, match=why):
            load({}, str(path))


@pytest.mark.parametrize(
    "text, line, key, hint",
    [
        ("[log]\n\nkep = 1\n", 3, "log.kep", "did you mean keep"),
        ("[log]\nkeep = 1\n[lgo]\nkeep = 1\n", 3, "lgo", "did you mean log"),
        ("color = 1\n", 1, "color", "write it below"),
        ("# x\nlog.kep = 1\n", 2, "log.kep", "did you mean keep"),
        ("log = { kep = 1 }\n", 1, "log.kep", "did you mean keep"),
        ('["log"]\n"kep" = 1\n', 2, "log.kep", "did you mean keep"),
        ("log = 5\n", 1, "log", "write \\[log\\]"),
        ("[[log]]\nkeep = 1\n", 1, "log", "write \\[log\\]"),
        ('[log]\nkeep = "7 weeks"\n', 2, "log.keep", "7d"),
        ("[log]\nkeep = true\n", 2, "log.keep", "7d"),
        ("[log]\nkeep = nan\n", 2, "log.keep", "7d"),
        ('[log]\nsession_cap = "64MB"\n', 2, "log.session_cap", "64M"),
        ("[log]\nsession_cap = 10\n", 2, "log.session_cap", "at least 1048576"),
        ("[log]\nsession_cap = 0x" + "f" * 5000 + "\n", 2, "log.session_cap", "4GiB"),
        ('[launcher]\nenabled = "yes"\n', 2, "launcher.enabled", "true or false"),
        ("[launcher]\nspares = 1.5\n", 2, "launcher.spares", "2"),
        ("[launcher]\nspares = true\n", 2, "launcher.spares", "2"),
        ("[launcher]\nspares = 65\n", 2, "launcher.spares", "1 to 64"),
        ("[launcher]\nspares = 0x" + "f" * 5000 + "\n", 2, "launcher.spares", "1 to 64"),
        ('[start]\nshell = "sh"\n', 2, "start.shell", "/bin/sh"),
        ("[start]\nshell = [1]\n", 2, "start.shell", "/bin/sh"),
        ('[start]\nstdin = "tty"\n', 2, "start.stdin", "closed or open"),
        ("[log]\nkeep = {a = 1}\n", 2, "log.keep", "7d"),
        ("[log.keep]\na = 1\n", 1, "log.keep", "7d"),
        ("[signals]\nrelease_waits = 5\n", 2, "signals.release_waits", "not a list"),
        ('[signals]\nrelease_waits = ["1s", "soon"]\n', 2, "signals.release_waits", "7d"),
        ("[restart]\nsuccess_codes = [0, 256]\n", 2, "restart.success_codes", "0 to 255"),
        ("[restart]\nfinal_codes = [" + "1," * 300 + "]\n", 2, "restart.final_codes", "at most 256"),
        ('[people]\nevents = ["failed", "boom"]\n', 2, "people.events", "needs_input"),
        ('[people]\nevents = ["failed", 1]\n', 2, "people.events", "such as"),
        ("[monitor]\nlimit = 3601\n", 2, "monitor.limit", "1 to 3600"),
        ('[monitor]\non_flood = "all"\n', 2, "monitor.on_flood", "digest or stop"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place_and_the_nearest(
    tmp_path: Path, text: str, line: int, key: str, hint: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError, match=hint) as caught:
        load({}, path)
    assert (caught.value.file, caught.value.line, caught.value.key) == (path, line, key)
    assert f"{path}:{line}: {key}: " in caught.value.message


@pytest.mark.parametrize(
    "text, line", [("[log]\nkeep = \n", 2), ("a\n", 1), ("[log]\nkeep = 1\nkeep = 2", 3), ('a = "', 1)]
)
def test_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, _write(tmp_path, text))
    assert caught.value.line == line


@pytest.mark.parametrize(
    "variable, text, hint",
    [
        ("HOLDFAST_LOG_KEP", "1", "did you mean HOLDFAST_LOG_KEEP"),
        ("HOLDFAST_LOG_KEEP", "soon", "7d"),
        ("HOLDFAST_LAUNCHER_SPARES", "two", "2"),
        ("HOLDFAST_LAUNCHER_ENABLED", "1", "true or false"),
    ],
)
def test_variable_that_is_not_understood_is_refused(tmp_path: Path, variable: str, text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        load({"HOME": str(tmp_path), variable: text})
    assert variable in caught.value.message
    assert caught.value.line is None


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_a_typed_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, errors="surrogatepass")
    error = _refusal(str(path))
    assert error is None or error.file == str(path)


_toml_value = st.sampled_from(["1", '"7d"', "true", "-1", "1e400", "[]", "{}", "nan", '""', "1979-05-27", "9" * 5000])
_names = st.sampled_from([*(s.name for s in SETTINGS), "log", "log.kep", "x.y", '"log".keep', "log.keep.deep"])


@given(st.lists(st.tuples(_names, _toml_value), max_size=4), st.booleans())
def test_any_keys_and_values_are_settings_or_a_typed_error_with_a_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]], tables: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "keys.toml"
    rows = [f"{name} = {value}" for name, value in lines]
    if tables:
        rows = [f"[{name.rpartition('.')[0] or 'x'}]\n{name.rpartition('.')[2]} = {value}" for name, value in lines]
    path.write_text("\n".join(rows))
    error = _refusal(str(path))
    # A number of thousands of digits is refused by the parser without a place.
    assert error is None or error.line is not None or error.key is None


@given(st.text(max_size=100), st.text(max_size=10), st.none() | st.text(max_size=10))
def test_line_search_never_fails(text: str, section: str, key: str | None) -> None:
    line = line_of(text, section, key)
    assert line is None or 1 <= line <= text.count("\n") + 1


@given(st.sampled_from(SETTINGS), st.none() | st.booleans() | st.integers() | st.floats() | st.text())
def test_any_value_of_any_setting_is_taken_or_refused(setting: config.Setting, value: object) -> None:
    try:
        taken = setting.value(value)
    except BadArgument:
        return
    assert setting.value(taken) == taken


def test_toml_parser_is_imported_only_for_a_file(tmp_path: Path) -> None:
    code = "import sys; from holdfast import config; config.load(); assert 'tomllib' not in sys.modules"
    environ = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)


def test_reference_page_is_current() -> None:
    reference = _reference()
    assert reference.PAGE.read_text() == reference.page(), "run tools/config_reference.py"


def test_a_list_is_written_as_a_list_or_as_text(tmp_path: Path) -> None:
    path = _write(tmp_path, '[restart]\nsuccess_codes = [0, "3"]\n[people]\nevents = ["ended", "watch"]\n')
    found = load({"HOLDFAST_SIGNALS_RELEASE_WAITS": "1s, 2m 30"}, path)
    assert found.restart_success_codes == (0, 3)
    assert found.people_events == ("ended", "watch")
    assert found.signals_release_waits == (1.0, 120.0, 30.0)
    assert found.people_retry_waits == (1.0, 5.0, 30.0, 120.0, 600.0)
    assert load({"HOLDFAST_PEOPLE_EVENTS": ""}, path).people_events == ()


@pytest.mark.parametrize("lines", ["question", "question=(", "riddle=^x$", "question=(a+)+$", "question="])
def test_a_prompt_that_is_invalid_is_refused_with_its_place(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[terminal]\nprompts = '''\nsecret=^Key: $\n{lines}\n'''\n")
    with pytest.raises(ConfigError) as refused:
        config.load({}, str(file))
    assert (refused.value.key, refused.value.line) == ("terminal.prompts", 2)


@pytest.mark.parametrize(
    "text, fix",
    [
        ("[stop]\ngrace = 5s  # short\n", 'write grace = "5s": text, sizes and durations need quotes'),
        ("[stop]\ngrace = = 5\n", "correct the TOML"),
        ("\nrows = 40\n", "write it below [terminal]"),
    ],
)
def test_a_slip_in_the_file_has_a_fix_that_can_be_copied(tmp_path: Path, text: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load({}, _write(tmp_path, text))
    assert (refused.value.fix, refused.value.line) == (fix, 2)


def test_prompts_are_lines_of_a_kind_and_a_pattern() -> None:
    text = "\nsecret=^Key: $\n\nquestion=^a=b\\?$\nsecret=^PIN> $\n"
    assert config.prompt_patterns(text, "x") == {"secret": ["^Key: $", "^PIN> $"], "question": ["^a=b\\?$"]}


def test_channels_to_people_are_tables_of_their_own(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        """
[people]
bell = true
[people.command]
argv = ["notify-send", "{title}", '{"json": "{body}"}']
[people.webhook.ops]
url = "https://example.org/hook?key=1"
secret_file = "/etc/holdfast/ops"
events = ["ended"]
[people.webhook."local.2"]
url = "http://127.0.0.1:8080/"
secret_file = "/etc/holdfast/local"
""",
    )
    found = load({}, path)
    assert found.people_command is not None
    assert found.people_command.argv == ("notify-send", "{title}", '{"json": "{body}"}')
    assert found.people_command.events is None
    assert list(found.people_webhooks) == ["ops", "local.2"]
    ops = found.people_webhooks["ops"]
    assert (ops.name, ops.secret_file, ops.events) == ("ops", "/etc/holdfast/ops", ("ended",))
    assert (ops.url, ops.shown_url) == ("https://example.org/hook?key=1", "https://example.org/...")
    assert found.sources()["people.webhook.ops"] == f"file {path}:6"
    shown = json.dumps(found.to_json())
    assert "notify-send" in shown
    assert "key=1" not in shown


_HOOK = '[people.webhook.ops]\nsecret_file = "/s"\n'


@pytest.mark.parametrize(
    "text, line, key, hint",
    [
        ("[people]\ncommand = 5\n", 2, "people.command", "write \\[people.command\\]"),
        ("[people.comand]\nargv = []\n", 1, "people.comand", "did you mean command"),
        ("[people.command]\n", 1, "people.command", "notify-send"),
        ('[people.command]\nargv = "notify-send"\n', 2, "people.command.argv", "notify-send"),
        ('[people.command]\nargv = ["a", 1]\n', 2, "people.command.argv", "notify-send"),
        ('[people.command]\nargv = ["a\\u0000"]\n', 2, "people.command.argv", "notify-send"),
        ('[people.command]\nargv = ["a", "x{titel}"]\n', 2, "people.command.argv", "{titel}.*{title}"),
        ('[people.command]\nargv = ["{name}"]\n', 2, "people.command.argv", "cannot be a placeholder"),
        ('[people.command]\nargv = ["a"]\n\nevent = ["x"]\n', 4, "people.command.event", "did you mean events"),
        ('[people.command]\nargv = ["a"]\nevents = ["x"]\n', 3, "people.command.events", "needs_input"),
        ('people = { command = { argv = ["{x}"] } }\n', 1, "people.command.argv", "unknown placeholder"),
        ('[people.webhook]\nurl = "https://x/"\n', 2, "people.webhook.url", "write \\[people.webhook.url\\]"),
        ("[people.webhook.Ops]\n", 1, "people.webhook.Ops", "a-z"),
        ("[people.webhook.ops]\n", 1, "people.webhook.ops", "url is missing"),
        (_HOOK + 'urls = "https://x/"\n', 3, "people.webhook.ops.urls", "did you mean url"),
        (_HOOK + 'url = "http://example.org/"\n', 3, "people.webhook.ops.url", "use https"),
        (_HOOK + 'url = "http://127.0.0.1.example.org/"\n', 3, "people.webhook.ops.url", "use https"),
        (_HOOK + 'url = "ftp://example.org/"\n', 3, "people.webhook.ops.url", "not an http address"),
        (_HOOK + 'url = "https://u:p@example.org/"\n', 3, "people.webhook.ops.url", "password"),
        (_HOOK + 'url = "https://example.org:x/"\n', 3, "people.webhook.ops.url", "not an address"),
        (_HOOK + 'url = "https://example.org/ x"\n', 3, "people.webhook.ops.url", "not an address"),
        (_HOOK + 'url = "https://example.org/\\r\\n"\n', 3, "people.webhook.ops.url", "not an address"),
        ('[people.webhook.ops]\nurl = "https://x/"\nsecret_file = "s"\n', 3, "people.webhook.ops.secret_file", "0600"),
    ],
)
def test_a_channel_that_is_not_understood_is_refused_with_its_place(
    tmp_path: Path, text: str, line: int, key: str, hint: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError, match=hint) as caught:
        load({}, path)
    assert (caught.value.file, caught.value.line, caught.value.key) == (path, line, key)


_channel_tables = st.dictionaries(
    st.sampled_from(["command", "webhook", "events", "x"]),
    st.recursive(
        st.sampled_from(['"a"', "1", '["a", "{title}"]', '["{x}"]', '"https://x/"', '"/s"', "[]"]),
        lambda inner: st.dictionaries(st.sampled_from(["argv", "url", "secret_file", "events", "ops"]), inner).map(
            lambda table: "{ " + ", ".join(f"{key} = {value}" for key, value in table.items()) + " }"
        ),
        max_leaves=6,
    ),
)


@given(_channel_tables)
def test_any_channel_is_taken_or_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, tables: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "channels.toml"
    path.write_text("[people]\n" + "".join(f"{key} = {value}\n" for key, value in tables.items()))
    error = _refusal(str(path))
    assert error is None or (error.line or 0) > 1


def test_names_of_variables_are_a_list_or_a_text(tmp_path: Path) -> None:
    assert load({}, _write(tmp_path, '[env]\npass = ["MY_KEY", "other"]\n')).env_pass == ("MY_KEY", "other")
    assert load({"HOLDFAST_ENV_PASS": "A,B C"}, _write(tmp_path, "")).env_pass == ("A", "B", "C")
    for wrong in ('["a-b"]', '["A=1"]', '[""]', "[1]", "{}"):
        refused = _refusal(_write(tmp_path, f"[env]\npass = {wrong}\n"))
        assert refused is not None
        assert refused.key == "env.pass"


@pytest.mark.root
@pytest.mark.covers("found:42")
def test_a_config_file_of_another_user_or_open_to_writers_is_refused_with_the_fix(world: World) -> None:
    """A channel in it is a command that we run."""
    path = world.root / "user" / ".config" / "holdfast" / "config.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text('[cli]\ncolor = "never"\n')
    assert world.hold("ls").returncode == 0
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        refused = world.hold("ls")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"it is writable by group or others (mode {mode:04o})" in refused.stderr
        fix = re.search(r"check its content, then `(chmod .*)`", refused.stderr)
        assert fix is not None
        subprocess.run(fix[1], shell=True, check=True)
        assert world.hold("ls").returncode == 0
    os.chown(path, 65534, -1)
    refused = world.hold("run", "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "it is owned by uid 65534, not by you" in refused.stderr
    fix = re.search(r"check its content, then `(cp .*)`", refused.stderr)
    assert fix is not None
    subprocess.run(fix[1], shell=True, check=True)
    assert world.hold("ls").returncode == 0
    # Named by the environment or by the caller it is no better.
    other = world.root / "other.toml"
    other.write_text("")
    other.chmod(0o666)
    assert (
        "it is writable by group or others (mode 0666)" in world.hold("ls", env={"HOLDFAST_CONFIG": str(other)}).stderr
    )
    with pytest.raises(ConfigError):
        load({}, str(other))
    assert world.hold("ls", env={"HOLDFAST_CONFIG": "/dev/null"}).returncode == 0
