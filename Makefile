# make demo    set up .venv and judge three well-known models and one that cannot train; writes demo/
# make test    set up .venv and run the tests          make slow    the long ones too
# make locked  set up .venv as CI does, every file by its hash      make lock   write those hashes anew (needs uv)
# make lint    ruff and mypy                           make docs    build the site, strictly
# make bench   measure accuracy and speed              make clean   forget everything that was built
# make release-check   build the wheel, install it into a fresh environment and ask it about GPT-2, also by its page
# make mutants plant mistakes one at a time and see whether the tests notice; goes on where it stopped
# make fuzz    thousands of good, strange and hostile inputs; counts by class, corpus in .fuzz/
# make browser Debian's chromium and axe-core, with which the tests of the page run (needs root and npm)
# make screenshots   pictures of the page for the docs, from the page as it is (needs a browser)
# make canary  measure the cheapest case of every recipe again and compare it with what is committed; fails if one raises
# make nightly whole recipes under ten minutes, slow tests, fuzz, planted mistakes; goes on where it stopped
# make results measure every committed result again, cheapest first; goes on where it stopped (UNDER=10: minutes each)
# make atlas   train the networks of experiments/atlas, hours; goes on where it stopped
# make census  read every model of transformers, x-transformers, vit-pytorch and timm; hours, goes on where it stopped

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help locked lock demo test slow canary nightly results atlas lint docs screenshots bench browser release-check census fuzz mutants clean

help:
	@sed -n 's/^# //p' Makefile

HASHED := constraints-hashed.txt
locked: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $(HASHED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VENV)/.installed $(VENV)/.installed-dev

lock:
	sed -n '/^#/p' $(HASHED) > build-lock.txt
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11.5 --generate-hashes --only-binary :all: \
	  -c constraints.txt --no-header --no-annotate --no-emit-index-url --quiet >> build-lock.txt
	mv build-lock.txt $(HASHED)

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n auto --dist worksteal

slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m "slow and not gpu and not network"

# Exit code 3 says that a number parted: it is printed, and a result never blocks a fix.
canary: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python tools/canary.py || test $$? -eq 3

results: $(VENV)/.installed
	OMP_NUM_THREADS=1 nice $(BIN)/python tools/results.py $(if $(UNDER),--under $(UNDER))

# Each part leaves a note, so that a night that was cut off goes on with the next part; all notes go at the end.
NIGHT := build/nightly
nightly: $(NIGHT)/recipes.done $(NIGHT)/slow.done $(NIGHT)/fuzz.done $(NIGHT)/mutants.done
	rm -rf $(NIGHT) .mutants

$(NIGHT)/recipes.done: $(VENV)/.installed
	mkdir -p $(NIGHT)
	OMP_NUM_THREADS=1 nice $(BIN)/python tools/canary.py --whole || test $$? -eq 3
	@touch $@

$(NIGHT)/slow.done $(NIGHT)/fuzz.done: $(NIGHT)/%.done: $(VENV)/.installed
	mkdir -p $(NIGHT)
	nice $(MAKE) $*
	@touch $@

$(NIGHT)/mutants.done: $(VENV)/.installed-mutants
	mkdir -p $(NIGHT)
	test -f $(NIGHT)/seed || date +%Y%m%d > $(NIGHT)/seed
	OMP_NUM_THREADS=1 nice $(BIN)/python -m tests.mutants nightly-$$(cat $(NIGHT)/seed) $$(cat $(NIGHT)/seed)
	@touch $@

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

mutants: $(VENV)/.installed-mutants
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

browser:
	command -v chromium || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }
	mkdir -p build/axe && cd build/axe && npm pack --silent axe-core@4 && tar -xzf axe-core-*.tgz

atlas: $(VENV)/.installed
	OMP_NUM_THREADS=1 nice $(BIN)/python -m experiments.atlas.run train

# Models of strangers live in an environment of their own: timm brings a torchvision that need not fit the torch here.
CENSUS := .venv-census
census: $(CENSUS)/.installed
	OMP_NUM_THREADS=1 $(CENSUS)/bin/python -m experiments.census.run

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshots: $(VENV)/.installed
	$(BIN)/python tools/screenshots.py

# The answer comes from outside the source tree, so that only what the wheel holds can give it.
release-check: $(VENV)/.installed-dev
	rm -rf dist build/release
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	test $$(wc -c < dist/*.whl) -lt 5000000
	$(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[explore]"
	cd / && env -u PYTHONPATH $(CURDIR)/build/release/bin/edgewise --version
	cd / && env -u PYTHONPATH $(CURDIR)/build/release/bin/edgewise predict gpt2
	cd / && env -u PYTHONPATH $(CURDIR)/build/release/bin/edgewise run --list
	cd / && env -u PYTHONPATH $(CURDIR)/build/release/bin/edgewise report gpt2 -o $(CURDIR)/build/release/report.html
	cd / && env -u PYTHONPATH $(CURDIR)/build/release/bin/python $(CURDIR)/tools/wheel_check.py

clean:
	rm -rf $(VENV) $(CENSUS) site build dist demo .fuzz .pytest_cache .mypy_cache .ruff_cache

# The stamps are older than what they depend on only when the set of packages may have changed.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[test]"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(INSTALL) -e ".[test,bench]"
	@touch $@

$(VENV)/.installed-mutants: $(VENV)/.installed
	$(INSTALL) -e ".[test,mutants]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) -e ".[dev]"
	@touch $@

$(CENSUS)/.installed: pyproject.toml constraints.txt experiments/census/constraints.txt
	@test -x $(CENSUS)/bin/python || $(PYTHON) -m venv $(CENSUS)
	$(CENSUS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -c experiments/census/constraints.txt -r experiments/census/constraints.txt -e ".[test]"
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "edgewise needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another interpreter: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
