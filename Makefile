# Everything from a fresh machine with Python 3.11, pip and make. Each target installs what it needs by itself.
PYTHON ?= $(firstword $(shell command -v python3.11 python3 python 2>/dev/null))
VENV   := .venv
RUN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: install demo test test-all soak lint types bench clean
.DEFAULT_GOAL := demo

install: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "forgetfree needs Python 3.11 or newer; pass PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt torch
	$(RUN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install
	$(RUN)/forgetfree demo

test: install lint
	$(RUN)/python -m pytest -n 2 -m 'not slow and not data and not integration'

test-all: install lint
	$(RUN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev,test-integrations]'
	$(RUN)/python -m pytest -n 2

soak: install
	PYTHONPATH=tests $(RUN)/python -m soak

lint: install
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: install
	$(RUN)/python -m bench

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
