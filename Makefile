# Two commands for a newcomer: make quickstart, make test. Everything else is for people who work on the package.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help quickstart test check format bench learn report docs clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.created
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.created
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
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

test: $(VENV)/.dev  ## run the tests, as CI does
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal tests

check: $(VENV)/.dev  ## format, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_package_smoke.py

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev  ## measure speed beside the installed peers (half an hour); peers: benchmarks/peers.sh
	$(BIN)/python benchmarks/speed.py

learn: $(VENV)/.dev  ## train every preset over three seeds and record the results (hours)
	$(BIN)/python benchmarks/learning.py

report: $(VENV)/.dev  ## every learning record beside published figures: docs/benchmarks/
	$(BIN)/python benchmarks/report.py

docs: $(VENV)/.dev  ## write option tables and results into the pages
	$(BIN)/python docs/generate.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
