"""The one redaction on every way out."""

from __future__ import annotations

import random
import re
import string
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.signals.redact import MARK, redact
from support.scale import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

# Put together here, so that no scanner takes this page for a leak.
ALNUM = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF"
HEX = "0123456789abcdef" * 4

SECRETS = {
    "aws key id": "AKIA" + "IOSFODNN7EXAMPLE",
    "github": "ghp_" + ALNUM + "abcd",
    "github fine-grained": "github_pat_" + ALNUM + "_" + ALNUM,
    "gitlab": "glpat-" + ALNUM[:20],
    "openai": "sk-proj-" + ALNUM,
    "anthropic": "sk-ant-api03-" + ALNUM,
    "stripe": "sk_live_" + ALNUM,
    "slack": "xoxb-" + "123456789012-" + ALNUM,
    "google": "AIza" + ALNUM + "abc",
    "npm": "npm_" + ALNUM + "abcd",
    "pypi": "pypi-" + ALNUM,
    "hugging face": "hf_" + ALNUM,
    "digital ocean": "dop_v1_" + HEX,
    "sendgrid": "SG." + ALNUM[:22] + "." + ALNUM,
    "vault": "hvs." + ALNUM,
    "telegram": "123456789:" + "AA" + ALNUM + "x",
    "jwt": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0." + ALNUM,
}


@pytest.mark.parametrize("around", ["{}", "key {} used", "({})", '"{}",', "x={};", "https://h/?a={}&b=1", "a\n{}\nb"])
def test_a_key_is_known_by_its_shape(around: str) -> None:
    for secret in SECRETS.values():
        reported = redact(around.format(secret))
        assert secret not in reported
        assert MARK in reported
        assert secret[-8:] not in reported
        assert reported.count("\n") == around.count("\n")


ASSIGNED = (
    ("password=hunter2", "password=[redacted]"),
    ("PASSWORD = hunter2", "PASSWORD = [redacted]"),
    ('"password": "hun\\"ter 2", "user": "ann"', '"password": "[redacted]", "user": "ann"'),
    ("{'api_key': 'abc', 'n': 1}", "{'api_key': '[redacted]', 'n': 1}"),
    ("DB_PASSWORD=x y", "DB_PASSWORD=[redacted] y"),
    ("export AWS_SECRET_ACCESS_KEY=wJalr/K7+x=", "export AWS_SECRET_ACCESS_KEY=[redacted]"),
    ("MYSQL_PWD=x mysql", "MYSQL_PWD=[redacted] mysql"),
    ("client_secret: abc", "client_secret: [redacted]"),
    ("https://h/cb?access_token=abc&state=1", "https://h/cb?access_token=[redacted]&state=1"),
    ("login --password hunter2 --user ann", "login --password [redacted] --user ann"),
    ("tool --api-key=abc run", "tool --api-key=[redacted] run"),
    ("curl -u ann:hunter2 https://h", "curl -u ann:[redacted] https://h"),
    ("sshpass -p hunter2 ssh h", "sshpass -p [redacted] ssh h"),
    ("postgres://ann:hunter2@db:5432/x", "postgres://ann:[redacted]@db:5432/x"),
    ("redis://:hunter2@cache", "redis://:[redacted]@cache"),
    ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
    ("authorization: Basic YW5uOmh1bnRlcjI=", "authorization: Basic [redacted]"),
    ('-H "Authorization: token abc" https://h', '-H "Authorization: token [redacted]" https://h'),
    ('Authorization: Digest username="ann", response="6629"', "Authorization: Digest [redacted]"),
    ("x-api-key: abc", "x-api-key: [redacted]"),
    ("Set-Cookie: sid=abc; Path=/", "Set-Cookie: [redacted]"),
    ("sent bearer abcdefgh12345678 there", "sent bearer [redacted] there"),
    ("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/services/[redacted]"),
)


def test_a_secret_is_known_by_what_stands_before_it() -> None:
    assert [(given, redact(given)) for given, _ in ASSIGNED] == list(ASSIGNED)


NO_SECRETS = (
    "PWD=/home/ann",
    "OLDPWD=/tmp",
    "max_tokens=4096",
    "total_tokens: 812",
    "token_count=12",
    "Password: ",
    "Password:",
    "Enter the password for ann",
    "password=$DB_PASSWORD",
    "password: str",
    "password: null",
    "token = get_token()",
    "password=********",
    "--password-file /run/secrets/db",
    "secret_name=db-main",
    "docker run -u 1000:1000 image",
    "ssh://git@github.com/x/y",
    "https://example.com:8080/path@2",
    "bearer authentication failed",
    "SyntaxError: unexpected token }",
    "sk-learn is a library",
    "AKIA is a prefix",
    "session b7k2m9qa1 failed, exit code 2; cursor stdout:88412",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "E   assert 1 == 2",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "",
)


def test_what_is_no_secret_stays() -> None:
    assert [text for text in NO_SECRETS if redact(text) != text] == []


KEY = ["-----BEGIN RSA PRIVATE KEY-----", *["MIIEpAIBAAKCAQEA" + ALNUM] * 3, "-----END RSA PRIVATE KEY-----"]


def test_a_private_key_keeps_its_edges_and_its_number_of_lines() -> None:
    reported = redact("\n".join(["before", *KEY, "after"])).split("\n")
    assert reported == ["before", KEY[0], MARK, MARK, MARK, KEY[-1], "after"]


@pytest.mark.parametrize(
    "lines",
    [KEY[:-1], KEY[1:], ["a log line: x", *KEY[1:]], [*KEY[:-1], "", "and then a log line."], [*KEY, "x", *KEY]],
    ids=["no end", "no beginning", "text before", "text behind", "two"],
)
def test_half_a_private_key_is_taken_out_too(lines: list[str]) -> None:
    reported = redact.lines(lines)
    assert len(reported) == len(lines)
    assert "MIIE" not in "\n".join(reported)
    assert [line for line in lines if "log" in line] == [line for line in reported if "log" in line]


def test_a_private_key_on_one_line_is_taken_out() -> None:
    reported = redact('{"key": "-----BEGIN PRIVATE KEY-----\\nMIIEabc\\n-----END PRIVATE KEY-----\\n", "n": 1}')
    assert "MIIE" not in reported
    assert '"n": 1}' in reported


# Values.


def test_a_record_is_redacted_in_depth_and_left_as_it_was() -> None:
    record = {
        "id": "b7k2m9qa1.3",
        "seq": 3,
        "snapshot": {"command": "run --token abc", "labels": {"api_key": "abc", "team": "x"}, "pid": None},
        "watch": {"lines": ["a", "password=hunter2"], "more": 0},
        "event": {"lines": [{"text": line, "stream": "stdout"} for line in KEY]},
        "needs_input": {"kind": "secret", "secret": True},
    }
    before = repr(record)
    reported = redact.value(record)
    assert repr(record) == before
    assert reported["id"] == "b7k2m9qa1.3"
    assert reported["seq"] == 3
    assert reported["snapshot"] == {
        "command": "run --token [redacted]",
        "labels": {"api_key": MARK, "team": "x"},
        "pid": None,
    }
    assert reported["watch"] == {"lines": ["a", "password=[redacted]"], "more": 0}
    assert [line["text"] for line in reported["event"]["lines"]] == [KEY[0], MARK, MARK, MARK, KEY[-1]]
    assert all(line["stream"] == "stdout" for line in reported["event"]["lines"])
    assert reported["needs_input"] == {"kind": "secret", "secret": True}


def test_what_is_nested_too_deeply_is_taken_out_whole() -> None:
    value: object = "password=hunter2"
    for _ in range(500):
        value = [{"a": value}]
    assert "hunter2" not in repr(redact.value(value))


# For all texts.

PIECES = (
    *SECRETS.values(),
    *("password", "token", "secret", "api_key", "pwd", "AWS_SECRET_ACCESS_KEY", "authorization", "cookie", "bearer"),
    *(
        "=",
        ": ",
        ":",
        "=>",
        " ",
        "\n",
        '"',
        "'",
        ",",
        ";",
        "&",
        "@",
        "://",
        "//",
        "/",
        "--",
        "-u ",
        "-",
        "_",
        ".",
        "\\",
    ),
    *(
        "Bearer ",
        "Basic ",
        "Digest ",
        "sshpass -p",
        "ann",
        "hunter2",
        "x",
        "1000",
        "[",
        "]",
        MARK,
        "redacted",
        "$",
        "(",
    ),
    *(*KEY, "PRIVATE KEY", "-----", "é", "\ud800", "https://", "hooks.slack.com/services/", "/api/webhooks/1/"),
)
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=14).map("".join)


@pytest.mark.covers("found:32")
@pytest.mark.parametrize(
    "text, left",
    [
        ("sshpass -p token: {pwd=hunter2hunter2", "sshpass -p [redacted] {pwd=[redacted]"),
        (" -u a:password: (token=hunter2hunter2", " -u a:[redacted] (token=[redacted]"),
    ],
)
def test_a_secret_that_another_one_hid_is_found_once_that_is_gone(text: str, left: str) -> None:
    """In one round the first name takes the second for its value, finds it harmless and leaves it."""
    assert redact(text) == left


@given(TEXT)
@example("token: Bearer abcdefgh12345678")
@example("password=password=x")
@example("-u a:-u b:password=c")
@settings(max_examples=scaled(80, 400), deadline=None)
def test_a_text_that_was_redacted_does_not_change_again(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(TEXT)
@settings(max_examples=scaled(60, 300), deadline=None)
def test_it_keeps_lines_and_never_grows_much(text: str) -> None:
    reported = redact(text)
    assert reported.count("\n") == text.count("\n")
    assert len(reported) <= 4 * len(text) + len(MARK)
    reported.encode()


def test_it_takes_time_in_proportion_to_the_text() -> None:
    """Whatever is repeated: a pattern that looks again and again at the same text would take minutes for this."""
    for piece in (*PIECES, "eyJ", "sk-", "a", "password=", "://a:", "-----BEGIN PRIVATE KEY-----\n"):
        begun = time.process_time()
        redact(piece * (200_000 // len(piece)))
        assert time.process_time() - begun < 5, piece


def test_no_secret_of_a_log_goes_through_in_any_way_out() -> None:
    log = "\n".join(f"{name} = {secret}" for name, secret in SECRETS.items())
    reported = redact(log)
    assert not [name for name, secret in SECRETS.items() if secret in reported]
    assert len(re.findall(re.escape(MARK), reported)) == len(SECRETS)


# Programs and keys.

LETTERS = string.ascii_letters + string.digits
CODE = Path(__file__).with_name("ordinary_code.txt").read_text().splitlines()


def drawn(source: random.Random, alphabet: str, length: int) -> str:
    return "".join(source.choices(alphabet, k=length))


# Put together when the test runs, in the shapes that each provider documents.
PROVIDERS: dict[str, Callable[[random.Random], str]] = {
    "anthropic": lambda r: "sk-" + "ant-api03-" + drawn(r, LETTERS + "_-", 93) + "AA",
    "openai": lambda r: "sk-" + "proj-" + drawn(r, LETTERS + "_-", 74),
    "aws": lambda r: "AK" + "IA" + drawn(r, string.ascii_uppercase + "234567", 16),
    "github": lambda r: "gh" + "p_" + drawn(r, LETTERS, 36),
    "gitlab": lambda r: "glp" + "at-" + drawn(r, LETTERS, 20),
    "google": lambda r: "AI" + "za" + drawn(r, LETTERS + "_-", 35),
    "slack": lambda r: "xo" + "xb-" + drawn(r, string.digits, 12) + "-" + drawn(r, LETTERS, 24),
    "stripe": lambda r: "sk" + "_live_" + drawn(r, LETTERS, 24),
    "hugging face": lambda r: "hf" + "_" + drawn(r, LETTERS, 34),
    "npm": lambda r: "np" + "m_" + drawn(r, LETTERS, 36),
    "sendgrid": lambda r: "S" + "G." + drawn(r, LETTERS, 22) + "." + drawn(r, LETTERS, 43),
    "digital ocean": lambda r: "do" + "p_v1_" + drawn(r, "0123456789abcdef", 64),
}
# As source code, settings, logs and command lines have them.
AROUND = (
    "{}",
    'api_key = "{}"',
    "const token = '{}';",
    "client = Client(api_key='{}')",
    "    token: {}",
    "export API_KEY={}",
    'curl -H "Authorization: Bearer {}" https://api.example.com',
    '{{"token": "{}", "user": "ann"}}',
    "https://user:{}@example.com/repo.git",
    "using key {} for ann",
)


@pytest.mark.covers("found:4")
def test_lines_of_code_that_speak_about_secrets_stay_as_they_are() -> None:
    assert len(CODE) >= 200
    assert [(line, redact(line)) for line in CODE if redact(line) != line] == []
    whole = "\n".join(CODE)
    assert redact(whole) == whole


@pytest.mark.covers("found:4")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_key_of_a_provider_goes_through_wherever_it_stands(provider: str) -> None:
    source = random.Random(provider)
    for number in range(scaled(50, 2000)):
        key = PROVIDERS[provider](source)
        line = AROUND[number % len(AROUND)].format(key)
        reported = redact("\n".join([CODE[number % len(CODE)], line, CODE[-1]])).split("\n")
        assert key[6:] not in reported[1], line
        assert key[-12:] not in reported[1], line
        assert (reported[0], reported[2]) == (CODE[number % len(CODE)], CODE[-1])
