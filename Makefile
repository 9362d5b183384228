# Two commands for a newcomer: make quickstart, make test. Everything else is for people who work on the package.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
TORCH ?=
BIN := $(VENV)/bin
# TORCH=2.11.0 installs that version of torch instead of the pinned one; CONSTRAINTS= (nothing) installs the newest of everything
PINS := $(abspath $(VENV)/pins.txt)
PIP := PIP_CONSTRAINT=$(PINS) PIP_BUILD_CONSTRAINT=$(PINS) $(BIN)/pip --quiet --disable-pip-version-check
# three workers on two cores: tests also wait, for signals, processes and Ray
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-all test-newest test-envs coverage mutants mutants-changed check format wheel bench learn campaign hardening soak fuzz audit report docs clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 17

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(PINS): $(CONSTRAINTS) | $(VENV)/.created
	@cat $(CONSTRAINTS) /dev/null | sed '$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' > $@

$(VENV)/.installed: pyproject.toml $(PINS)
	$(PIP) install -e .
	@touch $@

$(VENV)/.dev: pyproject.toml $(PINS)
	$(PIP) install -e '.[dev]'
	@touch $@ $(VENV)/.installed

quickstart: $(VENV)/.installed  ## train PPO on CartPole, evaluate it, and see what to try next (under three minutes)
	@$(BIN)/rl-training train --config configs/ppo/cartpole.yaml --output-dir runs/quickstart
	@run=$$(ls -td runs/quickstart/*/ | head -1); \
	echo; echo "20 episodes with the trained agent:"; $(BIN)/rl-training eval $$run --episodes 20; \
	echo; echo "Everything of the run is in $$run"; \
	echo "Next:  $(BIN)/rl-training resume $$run --total-timesteps 150_000"; \
	echo "       $(BIN)/rl-training train --config configs/sac/pendulum.yaml"; \
	echo "       $(BIN)/rl-training train --algo ppo --env Acrobot-v1 --num-envs 8 --total-timesteps 1e5"; \
	echo "       $(BIN)/rl-training show ppo"

test: $(VENV)/.dev  ## run the tests, as CI does, and print the ten slowest
	$(PYTEST) --durations=10 tests

test-all: $(VENV)/.dev  ## run them under what other machines bring: any order, no vector units, no compiler, each file alone (an hour)
	$(BIN)/python scripts/test_everywhere.py

test-newest:  ## run the tests with the newest versions of everything, in an environment of its own (.venv-newest)
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=

test-envs: $(VENV)/.dev  ## install environments of others, in .venv-envs, and try everything with them; ONLY="robots panda" for some
	$(BIN)/python benchmarks/third_party.py $(if $(ONLY),--only $(ONLY))

coverage: $(VENV)/.dev  ## run the tests and print the lines of the package that none of them reaches
	$(PYTEST) --cov --cov-report=term-missing:skip-covered tests

MUTANTS := $(BIN)/python scripts/mutants.py
SAMPLE ?= 650
BASE ?= main
mutants: $(VENV)/.dev  ## write SAMPLE=650 mistakes into a copy, one at a time, and record which of them no test notices (hours)
	$(MUTANTS) run --sample $(SAMPLE) --jobs 2
	$(MUTANTS) report --sample $(SAMPLE)
	$(MUTANTS) record --sample $(SAMPLE)

mutants-changed: $(VENV)/.dev  ## the same for the lines that differ from BASE=main, without a record
	$(MUTANTS) run --since $(BASE) --jobs 2
	$(MUTANTS) report --since $(BASE)

check: $(VENV)/.dev  ## format, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_package_smoke.py tests/repository/test_repository.py

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(VENV)/.dev  ## build the wheel into dist/, install it into a fresh environment, and run its command there
	rm -rf dist $(VENV)/wheel
	$(PIP) wheel --no-deps --wheel-dir dist .
	$(BIN)/python -m venv $(VENV)/wheel
	PIP_CONSTRAINT=$(PINS) $(VENV)/wheel/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd $(VENV)/wheel && bin/rl-training doctor

bench: $(VENV)/.dev  ## measure speed beside the installed peers (half an hour); peers: benchmarks/peers.sh
	$(BIN)/python benchmarks/speed.py

learn: $(VENV)/.dev  ## train every preset over three seeds and record the results (hours)
	$(BIN)/python benchmarks/learning.py

CAMPAIGN ?= ../campaign
WORKERS ?= 1
campaign: $(VENV)/.dev  ## begin or continue the evidence campaign in the background, in CAMPAIGN=../campaign (benchmarks/campaign.py)
	$(BIN)/python benchmarks/campaign.py start $(CAMPAIGN) --workers $(WORKERS)

SCALE ?= 1
hardening: $(VENV)/.dev  ## thousands of mutated files and configs, a hundred kills, bad disks: recorded (40 minutes; SCALE=0.05: two)
	$(BIN)/python benchmarks/hardening.py --scale $(SCALE) $(if $(ONLY),--only $(ONLY))

soak: $(VENV)/.dev  ## a simulated week: a thousand resumes of runs to which everything happens, recorded (ten minutes)
	$(BIN)/python benchmarks/soak.py

MINUTES ?= 120
EXAMPLES ?= 200
fuzz: $(VENV)/.dev  ## draw new mutations of files, configs, folders and environments for MINUTES=120, until one breaks something
	@end=$$(($$(date +%s) + 60 * $(MINUTES))); while [ $$(date +%s) -lt $$end ]; do \
	FUZZ_EXAMPLES=$(EXAMPLES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n0 -x --hypothesis-seed=$$(date +%s) tests/fuzzing/test_fuzz.py || exit 1; done

audit: $(VENV)/.dev  ## licences of everything installed, and known weaknesses where the database of advisories can be reached
	$(BIN)/python scripts/audit.py

report: $(VENV)/.dev  ## every learning record beside published figures: docs/benchmarks/
	$(BIN)/python benchmarks/report.py

docs: $(VENV)/.dev  ## write option tables and results into the pages
	$(BIN)/python docs/generate.py

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) .venv-newest .venv-envs .pytest_cache .mypy_cache .ruff_cache .coverage build dist
