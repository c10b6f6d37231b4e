"""Which variables of a host its commands get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.environment import denied, environment

NEEDED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"),
    *("SSH_AUTH_SOCK", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "DISPLAY", "WAYLAND_DISPLAY"),
    *("DBUS_SESSION_BUS_ADDRESS", "AWS_PROFILE", "AWS_SESSION_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
)
NEVER = (
    *("SUDO_PASSWORD", "GH_TOKEN", "GITHUB_TOKEN", "GITHUB_APP_ID", "TELEGRAM_BOT_TOKEN", "MY_BOT_TOKEN"),
    *("SLACK_APP_TOKEN", "SLACK_SIGNING_SECRET", "FEISHU_APP_SECRET", "TWILIO_ACCOUNT_SID", "MATRIX_PASSWORD"),
    *("GATEWAY_RELAY_URL", "HASS_TOKEN", "EMAIL_PASSWORD", "MODAL_TOKEN_ID", "DAYTONA_API_KEY"),
    *("AUXILIARY_VISION_API_KEY", "AUXILIARY_WEB_BASE_URL", "AWS_BEARER_TOKEN_BEDROCK"),
    *(
        "HOLDFAST_TOKEN",
        "HOLDFAST_SERVER_TOKEN",
        "HERMES_GATEWAY_TOKEN",
        "HERMES_SESSION_KEY",
        "OPENCLAW_GATEWAY_TOKEN",
    ),
)
UNASKED = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "LINE_LENGTH", "SIGNAL_HANDLER", "EDITOR", "path", "XPATH", "PATHS")


@pytest.mark.parametrize("name", NEEDED)
def test_what_programs_need_is_handed_on(name: str) -> None:
    assert name in environment({name: "1"})
    assert environment({name: "value"}) == {name: "value"}


@pytest.mark.parametrize("name", NEVER)
def test_what_the_host_holds_for_itself_is_handed_on_in_no_way(name: str) -> None:
    host = {name: "secret", f"_HERMES_FORCE_{name}": "secret"}
    tries = {name: "secret", f"_HERMES_FORCE_{name}": "secret", name.lower(): "secret"}
    assert environment(host, passed=[name, f"_HERMES_FORCE_{name}"], given=tries) == {}


@pytest.mark.parametrize("name", UNASKED)
def test_anything_else_is_handed_on_when_it_was_asked_for(name: str) -> None:
    host = {name: "value"}
    assert environment(host) == {}
    assert environment(host, passed=[name]) == {name: "value"}
    assert environment({}, given={name: "mine"}) == {name: "mine"}
    assert environment({}, given={f"_HERMES_FORCE_{name}": "mine"}) == {name: "mine"}


def test_the_prefix_that_forces_means_nothing_on_the_host() -> None:
    assert environment({"_HERMES_FORCE_OPENAI_API_KEY": "x"}, passed=["_HERMES_FORCE_OPENAI_API_KEY"]) == {}


def test_what_was_given_wins_and_none_takes_away() -> None:
    assert environment({"LANG": "C", "HOME": "/h"}, given={"LANG": "de", "HOME": None}) == {"LANG": "de"}


def test_a_host_names_what_it_keeps_for_itself() -> None:
    assert environment({"PATH": "/bin"}, given={"MY_KEY": "x"}, deny=["MY_KEY"]) == {"PATH": "/bin"}


def test_the_interpreter_of_the_host_leaves_no_trace_but_the_callers_own_stays() -> None:
    host = {"VIRTUAL_ENV": "/agent", "CONDA_PREFIX": "/conda", "PYTHONHOME": "/py", "PYTHONPATH": "/agent/lib:/agent/x"}
    assert environment(host, passed=host) == {}
    mine = {"VIRTUAL_ENV": "/project", "PYTHONPATH": "/agent/x:/project/src"}
    assert environment(host, given=mine) == {"VIRTUAL_ENV": "/project", "PYTHONPATH": "/project/src"}


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,30}", fullmatch=True), st.text()), st.lists(st.sampled_from(NEVER)))
def test_nothing_that_is_denied_ever_comes_out(host: dict[str, str], also: list[str]) -> None:
    everything = {**host, **dict.fromkeys(also, "secret")}
    found = environment(everything, passed=everything, given=dict(everything))
    assert not any(denied(name) for name in found)
