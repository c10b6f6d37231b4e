# make test          everything that has to pass before a change is done
# make test-all      the same with every repetition, variant and enumeration in full: before a release
# make test T=tests/terminal/test_text.py ARGS="-k cut -p no:randomly"
# make setup PYTHON=/usr/bin/python3.12

PYTHON ?=
BIN := .venv/bin
CHECKED := $(wildcard src tests tools bench)
# Twice as many as there are cores: most tests wait for something most of the time.
WORKERS ?= $(shell expr 2 \* $$(nproc))
T ?=
ARGS ?=

.DEFAULT_GOAL := test
.PHONY: setup system page run test test-all lint format types layers unit bench soak docs site clean checks pythons

setup:
	@tools/setup.sh "$(PYTHON)"

# What is missing is said here; the tests that need it say so again, by name.
system:
	@tools/system-packages.sh test || true
	@tools/node-packages.sh || true
	@tools/mcp-clients.sh || true

# The page of `hold serve`, into the package. Without Node the server says that it has none.
page: setup
	@$(BIN)/python tools/page_hook.py

run: setup
	@tools/demo.sh

# The checks take one core for a while: they run beside the tests. Either failing fails the whole, when both are done.
test: lint
	@$(MAKE) --no-print-directory --keep-going -j2 checks unit

# The long form: every test, repetition and enumeration in full.
test-all: export HOLDFAST_TESTS = all
test-all: test

# The suite on every Python that we name.
pythons:
	@tools/pythons.sh

lint: setup
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

format: setup
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

types: setup
	$(BIN)/mypy $(CHECKED)

checks: types layers

layers: setup
	$(BIN)/python tools/layers.py

unit: setup system
	@$(MAKE) --no-print-directory page
	$(BIN)/python -m compileall -q src
# Once for all workers: rewriting the assertions of all tests takes 15 s of CPU in a new clone.
	@$(if $(T),,$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true)
	$(BIN)/python -m pytest -n $(WORKERS) --junitxml=build/results.xml $(ARGS) $(T)
	@$(if $(T)$(ARGS),,$(BIN)/python tools/promises_page.py --results build/results.xml)

bench: setup
	@tools/system-packages.sh bench
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m bench $(ARGS)

# Half an hour of kills, full disks and lost indexes: make soak ARGS="--minutes 5"
soak: setup
	$(BIN)/python bench/soak.py $(ARGS)

docs: setup
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/manpage.py
	$(BIN)/python tools/config_reference.py
	$(BIN)/python tools/api_reference.py
	$(BIN)/python tools/modules_page.py
	$(BIN)/python tools/promises_page.py

# The documents as a site in build/site/html. A broken link fails.
site: setup
	@test -x build/site-venv/bin/mkdocs || $(BIN)/python -m venv build/site-venv
	@build/site-venv/bin/python -m pip install -q -r requirements/site.txt
	$(BIN)/python tools/site_pages.py
	NO_MKDOCS_2_WARNING=1 build/site-venv/bin/mkdocs -q build --strict --clean -f build/site/mkdocs.yml

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests tools $(wildcard bench) -name __pycache__ -type d -prune -exec rm -rf {} +
