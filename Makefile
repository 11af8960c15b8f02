# Everything installs what it needs into .venv; nothing has to be installed by hand.
#
#   make demo                       serve the demo model, print a curl line
#   make demo PROMPT="What is 437 + 285?"   answer once and exit
#   make test | test-slow | test-oracle | bench | lint

SHELL := /bin/bash

# The newest supported interpreter: on the path, then those of pyenv and uv, then python3.
PYTHON ?= $(shell for p in python3.13 python3.12 \
	$(HOME)/.pyenv/versions/3.13*/bin/python $(HOME)/.pyenv/versions/3.12*/bin/python \
	$(HOME)/.local/share/uv/python/cpython-3.13*/bin/python3 \
	$(HOME)/.local/share/uv/python/cpython-3.12*/bin/python3 python3; do \
	if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then command -v "$$p"; break; fi; done)
ORACLE_PYTHON ?= $(shell command -v python3)
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1
DEMO := --config demo.py --spec dflash2 --draft-tokens 7

.PHONY: demo test test-slow test-oracle bench lint clean

.venv/.core: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv found" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(PIP) .venv/bin/python -m pip install -q -e .
	touch $@

.venv/.test: .venv/.core
	$(PIP) .venv/bin/python -m pip install -q -e '.[test,vision,eval]'
	touch $@

.venv-oracle/.ready: pyproject.toml
	"$(ORACLE_PYTHON)" -m venv .venv-oracle
	$(PIP) .venv-oracle/bin/python -m pip install -q torch==2.13.0
	$(PIP) .venv-oracle/bin/python -m pip install -q -e '.[test,oracle,vision,eval]'
	touch $@

demo: .venv/.core
ifdef PROMPT
	@.venv/bin/python -m ninfer_jax.generate $(DEMO) --show-drafts --prompt "$(PROMPT)"
else
	@.venv/bin/python -m ninfer_jax.serve $(DEMO)
endif

test: .venv/.test
	.venv/bin/python -m pytest -m "not slow and not oracle" tests

test-slow: .venv/.test
	.venv/bin/python -m pytest -m "slow and not oracle" tests

test-oracle: .venv-oracle/.ready
	.venv-oracle/bin/python tests/golden/make_golden.py --check
	.venv-oracle/bin/python -m pytest -m oracle tests/oracle

bench: .venv/.test .venv-oracle/.ready
	.venv/bin/python -m bench

lint: .venv/.test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

clean:
	rm -rf .venv .venv-oracle build dist
