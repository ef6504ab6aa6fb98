# make train | test | env | lint, and the same for verl: make train-verl | env-verl
PYTHON ?= python3
BIN := .venv/bin
BIN_VERL := .venv-verl/bin
CODE := src tests docs recipes examples
NEW_RUN = runs/$(shell date +%Y-%m-%d-%H%M%S)
export TOKENIZERS_PARALLELISM := false


.PHONY: help train test soak chromium env lint train-verl test-verl env-verl clean

help:            ## what can be made
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

train: env       ## train the embedded policy with CoBA budgets through TRL, in minutes on a CPU; ARGS="--steps 20"
	$(BIN)/coba-rl train --output-dir $(NEW_RUN) $(ARGS)

test: env lint chromium   ## everything CI checks
	$(BIN)/pytest tests src --ignore tests/verl --ignore src/coba_rl/hosts/verl
	$(MAKE) test-verl

soak: env        ## the long versions of the kill, fuzz and state-machine tests, and what they survived
	COBA_SOAK=1 $(BIN)/pytest tests/faults/test_killed.py tests/faults/test_readers.py tests/faults/test_state_machine.py

lint: env        ## style, types, architecture, spelling, dependencies
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ty check src
	$(BIN)/lint-imports --no-cache
	$(BIN)/typos src docs examples README.md CONTRIBUTING.md CHANGELOG.md
	$(BIN)/deptry src

chromium:        # for the tests that look at report pages
	@command -v chromium > /dev/null || test -n "$$CHROMIUM" || \
	  { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y chromium > /dev/null; } || \
	  { echo "The report tests need Chromium: install it, or set CHROMIUM to its path."; exit 1; }

env: .venv/ready ## the environment of everything but verl

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[trl,math,report]' --group test --group lint
	touch $@

train-verl: env-verl  ## the same policy and task through verl: Ray, FSDP2, on CPU
	$(BIN_VERL)/python -m coba_rl.cli.verl_train --output-dir $(NEW_RUN)-verl $(ARGS)

test-verl: env-verl   ## short real verl jobs on CPU
	$(BIN_VERL)/pytest tests/verl

env-verl: .venv-verl/ready  ## the environment of verl

.venv-verl/ready: pyproject.toml
	$(PYTHON) -m venv .venv-verl
	$(BIN_VERL)/pip install --quiet --upgrade pip
	$(BIN_VERL)/pip install --quiet torch==2.13.0
	$(BIN_VERL)/pip install --quiet --editable '.[verl,math]' --group test
	touch $@

clean:           ## remove the environments and caches
	rm -rf .venv .venv-verl .pytest_cache .ruff_cache .hypothesis
