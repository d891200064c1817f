# The two commands: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help env envs demo gpu-payload demo-down test test-fast test-full status mutation fuzz bench locks renew format docs release clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: ## make .venv (ansible and the test tools)
	@tests/tools/make_envs

envs: # both environments, for the tests
	@tests/tools/make_envs all

# GPUS=2: so many nodes with an NVIDIA card of this machine each (1, 2 or 4)
demo: env ## boot four simulated Sparks, run site.yml on them and ask the endpoint
	@.venv/bin/python tests/lab/demo.py up --gpus $(or $(GPUS),0)

gpu-payload: env ## all that the demo with GPUS=N needs, in pieces for a machine without network: dist/gpu-payload
	@.venv/bin/python tests/lab/gpu_payload.py make dist/gpu-payload

demo-down: ## remove every trace of the demo
	@.venv/bin/python tests/lab/demo.py down

test: envs ## all tests of the project on this machine, in about 20 minutes
	@.venv/bin/python tests/run.py test

test-fast: env ## lint, types and most unit tests, without root, in under three minutes
	@.venv/bin/python tests/run.py fast

# STEPS="reboots fabric-vm", FORCE=1: see tests/run.py
test-full: envs ## test, and what takes longer; goes on where it stopped
	@.venv/bin/python tests/run.py full $(STEPS)

status: env ## of the tests: what each step came to last (of a cluster: status.yml)
	@.venv/bin/python tests/run.py status $(STEPS)

mutation: env ## mutation score of the parsers, or of named files
	@tests/mutation.sh

fuzz: env ## damaged input for every reader of tools, files and nodes, for MINUTES (10)
	@end=$$((SECONDS + 60 * $${MINUTES:-10})); while [ $$SECONDS -lt $$end ]; do \
	  HYPOTHESIS_PROFILE=explore .venv/bin/pytest -n 2 -q tests/unit/test_readers.py; done

bench: env ## budgets: growth with the machines, and (as root) an unchanged run on four simulated Sparks
	@.venv/bin/python tests/bench/scale.py --check
	@.venv/bin/python tests/bench/unchanged.py

format: env ## format the Python code
	@.venv/bin/ruff format cli plugins tests tools molecule docs
	@.venv/bin/ruff check --fix cli plugins tests tools molecule docs

docs: env ## write what docs/ has from the code, check links and commands, and build the site: dist/site/index.html
	@.venv/bin/python tools/make_docs.py
	@.venv/bin/pytest -n 0 -q tests/unit/test_documentation.py tests/unit/test_examples.py
	@.venv/bin/python tools/make_site.py dist/site

locks: ## resolve requirements/*.in into the locks, and make the option tables of newer engines
	@tools/make_locks

renew: env locks ## locks, and pin the recipes' models and images to what is there today; show what changed
	@.venv/bin/python tools/renew_pins.py || failed=1; \
	git --no-pager diff --stat -- requirements roles plugins execution-environment.yml; exit $${failed:-0}

release: envs ## archive of the last commit into dist/, built twice alike, installed and used (TRIAL=1: CONTRIBUTING.md)
	@.venv/bin/python tools/release.py dist $(if $(TRIAL),--trial)

clean: ## remove environments and caches of this checkout
	rm -rf .venv .venv-py312 .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis mutants
