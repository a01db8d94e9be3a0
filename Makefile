PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help run test prove bench lint clean

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1 \t\2/p' $(MAKEFILE_LIST)

# The environment is made again only when what it is made from changes.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

run: .venv/ready  ## a first look: the whole story, on real data
	$(BIN)/python -m catalog.demo

test: .venv/ready  ## the tests that every change has to pass
	$(BIN)/pytest --numprocesses 2 --dist worksteal

prove: .venv/ready  ## the long ones: races, kills, a cluster, a browser
	$(BIN)/pytest -m prove --numprocesses 2 --dist worksteal --ignore tests/faults
	$(BIN)/pytest -m prove -s tests/faults

bench: .venv/ready  ## how fast it is here
	$(BIN)/python -m tests.benchmarks.bench

lint: .venv/ready  ## rules, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:  ## remove all that was made here
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist spark-warehouse metastore_db derby.log
