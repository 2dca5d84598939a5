# make demo   draft and target as two processes on this machine, with the pair that ships here
# make test   lint, types and tests
# Both make .venv first; PYTHON chooses the interpreter (3.10 to 3.13).

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test proto clean

demo: .venv/ready
	@$(BIN)/python -m outrider.demo

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

proto: .venv/ready
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. grpc_comm/proto/verifier.proto

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv
