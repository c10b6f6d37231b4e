"""Make the pictures of the page for README and docs: real sessions, a real server, a real Chromium.

.venv/bin/python tools/pictures.py               # all of docs/pictures
.venv/bin/python tools/pictures.py list session  # some of them
"""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

import holdfast

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TARGET = Path(__file__).resolve().parent.parent / "docs/pictures"
# Larger pictures would make every clone slower.
MOST_BYTES = 150_000
BOUND_S = 60
TERMINAL = {"tty": True, "size": (30, 100)}

_BUILD = r"""
printf '\033[1m[1/4]\033[0m resolve\n\033[1m[2/4]\033[0m compile 812 modules\n\033[1m[3/4]\033[0m link\n'
printf '\033[31merror\033[0m: undefined reference to `ledger_close`\n  --> src/ledger/report.c:214:9\n' >&2
printf '\033[31merror\033[0m: build failed after 2 errors\n' >&2; exit 2
"""
_TESTS = r"""
for n in $(seq 1 48); do printf 'tests/test_ledger.py::test_case_%02d \033[32mPASSED\033[0m\n' $n; done
printf '\033[32m=== 48 passed in 3.12s ===\033[0m\n'
"""
_SERVER = r"""
echo 'ready on http://localhost:3000'
n=0; while :; do n=$((n+1)); echo "GET /api/orders/$n 200 $((n % 40 + 3))ms"; sleep 0.5; done
"""
_DEPLOY = r"""
printf '\033[32m+\033[0m service.web     to be created\n\033[32m+\033[0m service.worker  to be created\n'
printf '\033[33m~\033[0m dns.shop        to be changed in place\n\nPlan: 2 to add, 1 to change, 0 to destroy.\n\n'
printf 'Do you want to apply these changes? [y/N] '; read answer; echo "applying: $answer"; sleep 600
"""
_SECRET = "stty -echo; printf '[sudo] password for deploy: '; read secret; stty echo; sleep 600"
_WORKER = "while :; do echo job done; sleep 3; done"
_CRASH = "echo resizing 4012 images; kill -SEGV $$"
_SOURCE = '''"""Totals of a ledger."""

from decimal import Decimal


def total(entries: list[Entry]) -> Decimal:
    return sum((entry.amount for entry in entries), Decimal(0))
'''


class Stage:
    """A home of its own with sessions as a day of work leaves them, and a server for it."""

    def __init__(self, root: Path) -> None:
        self.home, self.work = root / "home", root / "shop"
        self.work.mkdir()
        self.closing = ExitStack()
        self.hf = self.closing.enter_context(holdfast.open(home=self.home))

    def start(self, name: str, command: str | list[str], **options: Any) -> holdfast.Session:
        session = self.hf.start(command, name=name, cwd=str(self.work), **options)
        self.closing.callback(session.kill)
        return session

    def script(self, name: str, text: str) -> str:
        """The command that runs this text: what people keep in a file looks so in a list."""
        (self.work / f"{name}.sh").write_text(text)
        return f"sh {name}.sh"

    def fill(self) -> None:
        (self.work / "ledger.py").write_text(_SOURCE)
        shop, ledger = {"project": "shop"}, {"project": "ledger"}
        late = self.start("nightly import", "echo waiting for rows; sleep 600", owner="cron", timeout=1)
        for name, text in (("tests", _TESTS), ("build", _BUILD), ("thumbnails", _CRASH)):
            command = text if text == _CRASH else self.script(name, text)
            session = self.start(name, command, owner="agent-7", labels=ledger)
            session.wait(exit=True, timeout=BOUND_S)
        self.start("migrate", "echo migrating; sleep 600", owner="agent-7", labels=shop).stop(by="agent-7")
        self.start("web", self.script("serve", _SERVER), owner="agent-7", labels=shop)
        self.start("worker", self.script("worker", _WORKER), owner="agent-3", labels=shop)
        self.start("editor", ["vim", "-N", "-u", "NONE", "-c", "syntax on | set number", "ledger.py"], **TERMINAL)
        repl = self.start("repl", "exec python3 -q", owner="ada", **TERMINAL)
        repl.wait(match=">>>", timeout=BOUND_S)
        repl.submit("[n * n for n in range(12)]")
        secret = self.start("certificates", self.script("renew", _SECRET), owner="ops", **TERMINAL)
        deploy = self.start("deploy", self.script("deploy", _DEPLOY), owner="agent-7", labels=shop, **TERMINAL)
        late.wait(exit=True, timeout=BOUND_S)
        while not all(each.refresh().needs_input for each in (deploy, secret)):
            select.select([], [], [], 0.1)

    def serve(self) -> str:
        """Start `hold serve`; the address where it listens."""
        server = subprocess.Popen([*self._hold("serve"), "--port", "0"], stdout=subprocess.PIPE, text=True)
        self.closing.callback(server.wait, BOUND_S)
        self.closing.callback(server.terminate)
        assert server.stdout is not None
        return server.stdout.readline().partition("/#")[0]

    def code(self) -> str:
        opened = subprocess.run(self._hold("open"), stdout=subprocess.PIPE, text=True, check=True)
        return opened.stdout.strip().partition("#code=")[2]

    def _hold(self, command: str) -> list[str]:
        return ["env", f"HOLDFAST_HOME={self.home}", str(Path(sys.executable).with_name("hold")), command]


def shot(page: Page, name: str) -> None:
    """One picture, with as few colours as a small file needs."""
    path = TARGET / f"{name}.png"
    page.screenshot(path=path)
    with Image.open(path) as picture:
        picture.quantize(128).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(TARGET.parent.parent)}: {size} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{path.name} has {size} bytes, the most is {MOST_BYTES}")


def take(stage: Stage, url: str, browser: Browser, wanted: set[str]) -> None:
    """`list`: what waits, runs and failed. `session`: a terminal. `log`: a failed build. `phone`: the inbox."""

    def open_page(path: str, width: int, height: int, scheme: str) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{url}/#code={stage.code()}")
        page.wait_for_selector("a.row")
        if path != "/":
            page.goto(url + path)
        return page

    if "list" in wanted:
        page = open_page("/", 1280, 720, "light")
        page.wait_for_function("() => document.querySelector('.preview pre')?.textContent.trim()")
        shot(page, "list")
    if "session" in wanted:
        page = open_page("/s/editor", 1280, 720, "dark")
        page.wait_for_selector(".connection.live")
        page.wait_for_selector(".xterm-rows:has-text('Decimal')")
        page.wait_for_selector(".timeline svg")
        shot(page, "session")
    if "log" in wanted:
        page = open_page("/s/build", 1280, 480, "light")
        page.wait_for_selector(".xterm-rows:has-text('ledger_close')")
        page.wait_for_selector(".timeline svg")
        shot(page, "log")
    if "inbox" in wanted:
        page = open_page("/inbox", 390, 700, "dark")
        page.wait_for_selector(".question")
        shot(page, "inbox")


def main() -> None:
    from playwright.sync_api import sync_playwright

    wanted = set(sys.argv[1:]) or {"list", "session", "log", "inbox"}
    TARGET.mkdir(exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="shop-"))
    stage = Stage(root)
    try:
        stage.fill()
        url = stage.serve()
        with sync_playwright() as playwright:
            path = shutil.which("chromium") or "chromium"
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
            take(stage, url, browser, wanted)
            browser.close()
    finally:
        stage.closing.close()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
