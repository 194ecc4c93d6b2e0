# `make demo` and `make test` need Python 3.11 and make, nothing else: they set up .venv on their first run.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint venv docs dist clean

$(VENV)/.demo: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "fedloom needs $(PYTHON); say PYTHON=/path/to/python3.11 if it has another name."; exit 1; }
	@echo "setting up $(VENV) with PyTorch and fedloom (once; a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) -e '.[plots]'
	@touch $@

$(VENV)/.ready: $(VENV)/.demo
	@echo "adding what tests and linters need (once; some minutes) ..."
	@$(PIP) -e '.[dev]'
	@touch $@

venv: $(VENV)/.ready

demo: $(VENV)/.demo
	$(BIN)/fedloom compare local fedavg fedprox fedper fedbn scaffold --data digits4 --partition domains --clients 20 \
		--rounds 12 --set norm=true --set width=16 --set features=128 --set eval_every=2 --workers 2 --out runs/demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n 2 --dist worksteal -rs

# All tests: every attack of tests/security in full, every method's export, every command of the pages, the
# built site in a browser, real federations. This takes hours, not minutes.
test-all: $(VENV)/.ready $(VENV)/.docs
	FEDLOOM_ATTACKS=full FEDLOOM_ALL=1 $(BIN)/python -m pytest -n 2 --dist worksteal -rs
	FEDLOOM_FEDERATION=1 $(BIN)/python -m pytest -n 0 -rs -m federation

# What the site is made with; once it is there, `make docs` needs no network.
$(VENV)/.docs: $(VENV)/.demo
	@$(PIP) -e '.[docs]'
	@touch $@

# The site, into build/site; a broken link fails.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and source package, in dist/; both are then tried in an empty folder with an environment of its own.
dist: $(VENV)/.demo
	@$(PIP) build
	rm -rf dist build src/*.egg-info
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tests/dist.py dist/*.whl dist/*.tar.gz constraints.txt

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs/demo
