# Every target sets up what it needs. PYTHON may name any Python from 3.11 on.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS ?= runs
JOBS ?= 2

.PHONY: demo test test-slow soak browser check docs format bench results dist clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)  ## junk drawn less, bad documents named, hidden domains found; a page of it all
	$(BIN)/dograph data prepare junk --toward junk@trusted --strata 8 --out data/junk
	rm -rf $(RUNS)/demo-natural $(RUNS)/demo-trusted $(RUNS)/demo-planted
	$(BIN)/dograph train demo data.corpus=data/junk mixer.name=natural train.on_spike=warn run=$(RUNS)/demo-natural
	$(BIN)/dograph train demo data.corpus=data/junk mixer.name=dsir run=$(RUNS)/demo-trusted
	$(BIN)/dograph train planted run=$(RUNS)/demo-planted
	@echo "1. A third of the text is junk that nobody labelled. Scored towards trusted text, it is drawn less:"
	$(BIN)/python examples/junk_drawn.py $(RUNS)/demo-natural $(RUNS)/demo-trusted
	$(BIN)/dograph show losses $(RUNS)/demo-natural $(RUNS)/demo-trusted
	@echo "2. Documents with unusual gradients, named while the model trained on them:"
	$(BIN)/dograph show spikes $(RUNS)/demo-natural
	@echo "3. DoGraph: four sources were planted, told apart only by which word follows which. Found:"
	$(BIN)/dograph show graph $(RUNS)/demo-planted
	@echo "runs: $(RUNS)/demo-natural $(RUNS)/demo-trusted $(RUNS)/demo-planted"
	$(BIN)/dograph report $(RUNS)/demo-natural $(RUNS)/demo-trusted $(RUNS)/demo-planted --out $(RUNS)/demo.html
	@echo "open it in a browser: $(RUNS)/demo.html"

test: $(READY)  ## the fast suite, under 6 minutes on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -n $(JOBS)

browser:  ## Debian's Chromium and its driver, for the tests of the page
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
		sudo=$$(test "$$(id -u)" = 0 || echo sudo -n) ; \
		$$sudo apt-get update -qq && $$sudo apt-get install -y -qq chromium chromium-driver ; }

test-slow: $(READY)  ## what takes longer: many kills, world sizes, a real corpus, the page in a browser
	@$(MAKE) --no-print-directory browser || echo "no browser: the tests of the page are skipped"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(JOBS)

soak: $(READY)  ## 1,000 random models in every mode, 10,000 damaged or random inputs, 1,000 kills: about an hour
	OMP_NUM_THREADS=1 DOGRAPH_RANDOM_MODELS=1000 DOGRAPH_FUZZ_INPUTS=10000 DOGRAPH_FUZZ_KILLS=1000 \
		$(BIN)/python -m pytest -m slow -n $(JOBS) tests/unit/sketch/test_random_models.py tests/fuzz

docs: $(READY)  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: $(READY)  ## format, lint, types, layering, the documentation with its links and code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/contracts -m 'not slow'
	$(MAKE) --no-print-directory docs

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## rewrite the CPU figures in benchmarks/results; keep the machine idle meanwhile
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.sketch
	$(BIN)/python -m benchmarks.sketch --preset demo --seq-len 128 --recipe recommended --modes full head --name sketch-demo
	$(BIN)/python -m benchmarks.loader
	$(BIN)/python -m benchmarks.imports
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.plans
	$(BIN)/python -m benchmarks.world_batch
	$(BIN)/python -m benchmarks.page
	@echo "preparing is measured on your own text: python -m benchmarks.prepare INPUT... --tokenizer FILE"

results: $(READY)  ## docs/results.md from the figures, and which of them got worse since the last commit
	$(BIN)/python -m benchmarks.results_page

dist:  ## wheel and sdist, installed and run in clean environments; DIST="minimal sdist" runs these alone
	$(PYTHON) tests/dist.py $(DIST)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
