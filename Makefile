# make demo | test | check | protos | bench: the five things one does here.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTOS := $(wildcard protos/reelmesh/v1/*.proto)
CHECKPOINT := checkpoints/tiny
TRAINED := weights/demo
SOURCES := services protos/reelmesh tests tools benchmarks

.PHONY: demo test check protos bench score install clean

install: $(STAMP)

$(STAMP): pyproject.toml
	command -v $(PYTHON) >/dev/null 2>&1 && $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip<26.2"
	$(BIN)/pip install --quiet --editable ".[all,dev]"
	touch $(STAMP)

$(CHECKPOINT)/modular_model_index.json: $(STAMP) $(wildcard tools/tiny_*.py)
	$(BIN)/python -m tools.tiny_checkpoint --force --out $(CHECKPOINT)

demo: $(STAMP)
	$(BIN)/python -m tools.demo --checkpoint $(TRAINED) --output out/demo.mp4

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/python -m tools.generate --check

# Regenerates what is made from other files: the protobuf code and docs/errors.md.
protos: $(STAMP)
	$(BIN)/buf format --write
	$(BIN)/python -m tools.generate

bench: $(STAMP) $(CHECKPOINT)/modular_model_index.json
	$(BIN)/python -m benchmarks.run --checkpoint $(CHECKPOINT)

# What the trained checkpoint does with held-out requests; an hour or two for all of it.
score: $(STAMP)
	$(BIN)/python -m tools.demo_model.score --checkpoint $(TRAINED) --write

clean:
	rm -rf build out checkpoints .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
