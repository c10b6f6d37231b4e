"""What holds for the whole suite: options, levers, the test process as a subreaper."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from support import levers, processes
from support.census import FAILED
from support.scale import LONG, scaled

# A slow test enumerates; its outer net is wider than the one in pyproject.toml.
_SLOW_TIMEOUT_S = 300


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption(
        "--strict-env",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="a lever that this machine lacks is an error, not a skip (on where CI=true)",
    )
    group.addoption("--evidence", metavar="DIR", help="keep home, files, processes and points of failed tests here")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*levers): needs these of support/levers.py from the machine")
    evidence = config.getoption("--evidence")
    if evidence:
        # A test has a working directory of its own.
        config.option.evidence = str(Path(evidence).absolute())
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(config.rootpath / ".hypothesis"))
    # Tests run beside each other on busy machines: how long one example took says nothing.
    hypothesis.settings.register_profile("holdfast", deadline=None, max_examples=scaled(30, 100))
    hypothesis.settings.load_profile("holdfast")
    processes.become_subreaper()
    processes.watch_births()
    # A shell in the background ignores SIGINT and SIGQUIT, `nohup` ignores SIGHUP, and every child inherits that.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if not item.get_closest_marker("short" if LONG else "long")]
    runs = {item.nodeid for item in wanted} if LONG else chosen(wanted)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in runs])
    items[:] = [item for item in items if item.nodeid in runs]
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_S))


def pytest_runtest_setup(item: pytest.Item) -> None:
    levers.require(item, item.config.getoption("--strict-env"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption("--strict-env"):
        _refuse_skip(report)
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if collector.config.getoption("--strict-env"):
        _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """However a test came to skip: what it needs is missing, unless another job has it."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not levers.may_skip(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped, which --strict-env does not allow: {reason}"


# Variants of a test: the same test by another way, with an ability switched off, over MCP, through asyncio.
# The parameter of each of these fixtures that every test runs with.
USUAL = {
    "without": [""],
    "dialect": ["holdfast.v1"],
    "agents": ["library"],
    "hf": ["blocking-launcher"],
    "away": ["ssh", "over_ssh"],
    "serving": ["direct"],
    "remote": ["ssh"],
}


def chosen(items: list[pytest.Item]) -> set[str]:
    """The ids of the tests that run. Depends on which there are, not on their order."""
    shown: set[tuple[str, object, str]] = set()
    found = set()
    for item in sorted(items, key=lambda item: item.nodeid):
        unusual = list(_unusual(item))
        new = {(fixture, value, subject) for fixture, value in unusual for subject in _subjects(item, fixture)} - shown
        shown |= new
        if new or not unusual:
            found.add(item.nodeid)
    return found


def _unusual(item: pytest.Item) -> Iterator[tuple[str, object]]:
    called = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    for fixture, usual in USUAL.items():
        if fixture in called and called[fixture] not in usual:
            yield fixture, called[fixture]


# The rows of the fault list that are proven again with each ability switched off.
_AGAIN_WITHOUT = ("OWN-", "KIL-", "IDN-")


def _subjects(item: pytest.Item, fixture: str) -> list[str]:
    """What the variant is shown for: each promise of the test, or its file. A file of a toolset is about one tool."""
    promised = [str(row) for mark in item.iter_markers("covers") for row in mark.args]
    if fixture == "without":
        return [row for row in promised if row.startswith(_AGAIN_WITHOUT)]
    if fixture == "serving":
        promised = [row for row in promised if row.startswith("nodes:")]
    return promised if promised and fixture != "agents" else [str(item.path)]
