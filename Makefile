# Both commands set up everything they need in .venv; they need Python 3.11+ and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types pytest clean

demo: .venv/.installed
	$(BIN)/python samples/demo.py

test: lint types pytest

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-dev
	$(BIN)/basedpyright

pytest: .venv/.installed-dev
	$(BIN)/pytest -n 2 --dist worksteal

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
