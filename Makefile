# Bare `make` says what each target does. The environment is .venv, made on first need.
PYTHON      ?= python3
VENV_FLAGS  ?=
CONSTRAINTS ?= requirements.txt
VENV        := .venv
BIN         := $(VENV)/bin
NOTEBOOKS   := $(wildcard lessons/*.ipynb book/*.ipynb book/*/*.ipynb)
SOLUTIONS   := $(wildcard solutions/*/*.ipynb)
QUICK       := not browser and not elastic and not slow
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help book lab quick test lessons exercises measure bench mutants clean

help:  ## say what each target does
	@awk -F'  ## ' '/^[a-z]+:.*  ## / { sub(/:.*/, "", $$1); printf "make %-10s %s\n", $$1, $$2 }' Makefile

book: $(VENV)/.has-book  ## build the HTML from the stored outputs and say where it is (seconds; no torch needed)
	@# A failed build leaves no cache behind: the next one must meet the same warnings.
	@$(BIN)/jupyter-book build -q -W -n --keep-going . >/dev/null || { rm -rf _build/.doctrees; exit 1; }
	@echo "Open file://$(CURDIR)/_build/html/index.html"

lab: $(VENV)/.has-run  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

quick: $(VENV)/.has-all  ## check within 90 s: no notebooks, browser or elastic agents, nothing marked slow
	$(BIN)/python -m pytest -q -m "$(QUICK)" $(ARGS)

test: $(VENV)/.has-all  ## check everything: formulas, experiments, notebooks run again, pages in a browser (up to 25 min)
	$(BIN)/python tools/chromium.py
	$(BIN)/python -m pytest -q --nbval $(NOTEBOOKS) $(SOLUTIONS) tests lib $(ARGS)

lessons: $(VENV)/.has-run  ## run the notebooks and store their outputs (minutes); one lesson: make lessons L=06
	$(BIN)/python tools/execute.py $(if $(L),$(wildcard lessons/$(L)_*.ipynb),$(NOTEBOOKS))

exercises: $(VENV)/.has-teach  ## make what students get (exercises/) from the solved assignments (solutions/)
	@for folder in $(sort $(notdir $(patsubst %/,%,$(dir $(SOLUTIONS))))); do \
		$(BIN)/nbgrader generate_assignment --force --no-db $$folder || exit 1; done
	@$(if $(SOLUTIONS),,echo "No assignment in solutions/ yet: nothing to make.")

measure: $(VENV)/.has-run  ## measure this machine into lessons/measurements/ (minutes)
	$(BIN)/python -m clusterlab.run.probes $(ARGS)

bench: $(VENV)/.has-all  ## print what the library reaches, in seconds and ratios (minutes)
	@for file in $(sort $(wildcard benchmarks/*.py)); do echo "$$file"; $(BIN)/python $$file || exit 1; done
	@$(if $(wildcard benchmarks/*.py),,echo "No benchmark yet: nothing to print.")

mutants: $(VENV)/.has-mutants  ## change the formulas and count what their tests notice (an hour or more); one: make mutants M=plan
	$(BIN)/python tools/mutants.py $(M)

clean:  ## remove what was built (keeps .venv)
	rm -rf _build .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or \
		sys.exit(f"Python 3.11 or newer is needed and this is {v}. Name another: make PYTHON=python3.12")'
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV_FLAGS) $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment (Debian, Ubuntu: apt-get install python3-venv)."; exit 1; }

# One stamp for each extra of pyproject.toml. A torch that is already there, any build of it, is kept.
$(VENV)/.has-%: pyproject.toml requirements.txt | $(BIN)/python
	@if version=$$($(BIN)/python -c 'from importlib.metadata import version as v; print(v("torch"))' 2>/dev/null); \
		then echo "Keeping torch $$version" >&2; grep -v '^torch==' $(CONSTRAINTS); else cat $(CONSTRAINTS); fi \
		> $(VENV)/constraints.txt || true
	$(BIN)/python -m pip install --disable-pip-version-check -c $(VENV)/constraints.txt -e ".[$*]"
	@# matplotlib lists the fonts once and says so on stderr: not in a lesson's output
	@$(BIN)/python -c 'import matplotlib.font_manager' 2>/dev/null || true
	@touch $@
