# The two commands of the README: `make demo` and `make test`. Both install on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := pyproject.toml papers/pyproject.toml constraints.txt setup.py $(wildcard src/native/*)
OUT ?= demo-run
# Tests start dozens of processes: modules are compiled once for all of them, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

# Ledgers wait for the disk at every charge; tests have theirs in memory, where there is some to spare.
SCRATCH := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "TMPDIR=/dev/shm" }')
# nproc counts what OMP_NUM_THREADS allows to one process, and these are several.
CORES := $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
# One worker more than cores: some tests wait for processes and browsers of theirs.
WORKERS ?= $(shell expr $(CORES) + 1)
CASES ?= 100000
SEED ?= 1

.PHONY: help install install-dev demo check lint types test quick-tests test-full test-arm fuzz wheel bench compare figures golden walks soundness mutations designs names picture docs clean

help:            ## show this list
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/ -/'

install: $(STAMP)  ## make .venv with all that using it takes (a second call is instant)

install-dev: $(DEV)  ## the same, and what tests, types and docs take

$(STAMP): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Sottovoce needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing into $(VENV): two or three minutes, torch is most of it"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[learn,flower,report]' -e ./papers
	@touch $@

$(DEV): $(STAMP)
	@echo "installing what tests and docs take: a minute or two"
	$(PIP) -e '.[learn,flower,report,dev]' -e ./papers
	@touch $@

demo: install    ## train privately on the bundled digits; report in demo-run/report.html
	$(BIN)/sottovoce demo --out $(OUT)

check: lint types ## ruff, import-linter, mypy --strict

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: install-dev
	$(BIN)/mypy

# Types and tests side by side: mypy alone would leave a core idle. Files are dealt out whole, so
# that what the tests of a file share is made once.
test: lint       ## check, and the tests but for slow ones, with warnings as errors
	$(MAKE) --no-print-directory --jobs=2 types quick-tests

quick-tests: install-dev
	$(SCRATCH) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not slow'

test-full: check ## the above, what is slow, and property tests with new cases
	$(SCRATCH) HYPOTHESIS_PROFILE=explore OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(CORES) --dist loadgroup

test-arm: install-dev ## the tests of the C kernels on an emulated ARM processor (needs gcc-aarch64-linux-gnu and qemu-user)
	$(BIN)/python tools/arm_emulation.py

fuzz: install-dev ## hostile input to every entrance, from a seed; CASES=1000000 takes about an hour on one core
	OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz.py --cases $(CASES) --seed $(SEED) --out results/fuzz.md --resume

wheel: install-dev ## sdist and wheel into dist/, built with and without a compiler, tried in a clean environment
	rm -rf dist
	OMP_NUM_THREADS=1 KEEP_BUILT=dist $(BIN)/python -m pytest tests/test_wheel.py tests/test_release.py

bench: install-dev ## benchmarks into results/benchmarks.md: wrong results fail, slow ones never do
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench.py $(if $(PEERS),--peers $(PEERS))

compare: install-dev ## the kernels of this tree and of another commit in turns: COMMIT=aa2f404
	$(BIN)/python benchmarks/beside.py $(COMMIT)

figures: install-dev ## every figure that was asked for, measured, into results/figures.md (hours; ONLY=theme-or-name WITHIN=minutes)
	$(BIN)/python benchmarks/measure_figures.py $(if $(ONLY),--only '$(ONLY)') $(if $(WITHIN),--within $(WITHIN))

golden: install-dev ## seeded runs and commands give the bytes of tools/golden.json, which a change of behavior rewrites (ONLY=words)
	$(BIN)/python tools/golden.py $(if $(ONLY),--only '$(ONLY)')

walks: install-dev ## packages, lines, type tests, and the files that an update and a spec pass (TREE=other-checkout)
	$(BIN)/python tools/walks.py $(if $(TREE),--tree '$(TREE)')

soundness: install-dev ## the tests that docs/explanation/theorems.md names, with ten times the cases, into results/soundness.md (hours; ONLY=words)
	$(BIN)/python tools/soundness.py $(if $(ONLY),--only '$(ONLY)')

mutations: install-dev ## faults planted one at a time: the tests that docs/explanation/theorems.md names must find them (ONLY=words)
	$(BIN)/python tools/mutations.py $(if $(ONLY),--only '$(ONLY)')

designs: install-dev ## solve again the MVU designs that come with the package (minutes)
	$(BIN)/python tools/ship_designs.py

names: install ## the pages of every exported name and of published formulas, into docs/reference/
	$(BIN)/python tools/docs_names.py
	$(BIN)/python tools/docs_published.py

picture: install ## the README's picture, from results/, into docs/accuracy-by-bytes.svg
	$(BIN)/python tools/readme_picture.py

docs: install-dev ## the documentation as pages, into site/ (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:           ## remove what the other targets made
	rm -rf $(VENV) demo-run dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache src/*.egg-info papers/src/*.egg-info src/sottovoce/_native*.so src/sottovoce/_native*.pyd
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
