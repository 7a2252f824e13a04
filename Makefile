# Both commands set up everything they need in .venv; they need Python 3.11+ and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo dev test test-long bugs mutants lint types pytest clean

demo: .venv/.installed
	$(BIN)/python samples/demo.py

# What tests, lint and types need; each of the targets below sets it up, too.
dev: .venv/.installed-dev

test: lint types pytest

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-dev
	$(BIN)/basedpyright

pytest: .venv/.installed-dev
	$(BIN)/pytest -n 2 --dist worksteal

# The drawn tests with 25 times the examples, new ones in each run, and whole grids. tests/examples.py says what the two
# names mean.
test-long: export CNNCC_EXAMPLES := $(or $(CNNCC_EXAMPLES),25)
test-long: export CNNCC_SEED := $(or $(CNNCC_SEED),$(shell date +%s))
test-long: .venv/.installed-dev
	@echo "this run again: make test-long CNNCC_EXAMPLES=$$CNNCC_EXAMPLES CNNCC_SEED=$$CNNCC_SEED"
	$(BIN)/pytest -n 2 --dist worksteal $$(grep -lE '^from (examples|hypothesis) import' tests/test_*.py)

# Plants one-line bugs in a copy of the checkout; the tests should see each. Goes on where it was interrupted.
bugs: .venv/.installed-dev
	$(BIN)/python tests/plant_bugs.py

# The same with 300 changes that are drawn. Once, it measures which tests run which lines.
mutants: .venv/.installed-dev
	$(BIN)/python tests/plant_bugs.py --drawn 300

.venv/.installed: pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("cnncc needs Python 3.11 or later, \
	$(PYTHON) is %d.%d: make PYTHON=python3.12 …" % sys.version_info[:2])'
	@echo "making .venv and installing cnncc and its packages: about half a minute"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --progress-bar on --disable-pip-version-check -c .ci/constraints.txt -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	@echo "installing what tests, lint and types need"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build demo *.egg-info
