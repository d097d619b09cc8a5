# Everything runs in .venv, made here from constraints.txt; nothing else is assumed but Python and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL := smollm2-135m-instruct
NATIVE_SOURCES := CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.h csrc/*/*.cpp csrc/*/*.h)
CXX_SOURCES := $(filter %.cpp %.h,$(NATIVE_SOURCES))

STUB := src/ridgeline/kernels/_native.pyi
write_stub = $(BIN)/python -m nanobind.stubgen -q -m ridgeline.kernels._native -o $(1) && \
	$(BIN)/ruff format -q --isolated --line-length 110 $(1)

.PHONY: demo test check unit golden bench format clean model stub
.DELETE_ON_ERROR:

demo: model
	$(BIN)/ridgeline generate "Why is the sky blue? Answer in two sentences." --max-tokens 96

test: check model
	$(BIN)/python -m pytest

check: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	$(call write_stub,build/_native.pyi)
	diff -u $(STUB) build/_native.pyi

unit: $(VENV)/.tools
	$(BIN)/python -m pytest -m "not golden"

golden: $(VENV)/.tools model
	$(BIN)/python -m pytest -m golden

# PEERS=DIR, a directory with venv-llama and venv-hf, measures these engines too and renews the page of results.
bench: model
	mkdir -p build
	$(BIN)/ridgeline bench engine --json build/bench.json \
	  $(if $(PEERS),--peers $(PEERS) --markdown benchmarks/RESULTS.md)

format: $(VENV)/.tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

stub: $(VENV)/.tools
	$(call write_stub,$(STUB))

model: $(VENV)/.built
	$(BIN)/ridgeline pull $(MODEL)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.build-tools: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt scikit-build-core nanobind cmake ninja
	touch $@

$(VENV)/.built: $(VENV)/.build-tools pyproject.toml $(NATIVE_SOURCES)
	$(PIP) install -q -c constraints.txt --no-build-isolation -e .
	touch $@

$(VENV)/.tools: $(VENV)/.built
	$(PIP) install -q -c constraints.txt --no-build-isolation -e ".[dev]"
	touch $@
