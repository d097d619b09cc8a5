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

.PHONY: demo test check unit golden bench book format clean model stub sanitize sanitize-thread without-sanitizers
.DELETE_ON_ERROR:

demo: model
	$(BIN)/ridgeline generate "Why is the sky blue? Answer in two sentences." --max-tokens 96

# The kernel tests under sanitizers are part of it wherever the compiler has them.
CAN_SANITIZE := $(shell echo 'int main() {}' | $(CXX) -x c++ -fsanitize=address,undefined - -o /dev/null 2>&1 || echo no)

test: check model $(if $(CAN_SANITIZE),without-sanitizers,sanitize)
	$(BIN)/python -m pytest

without-sanitizers:
	@echo "$(CXX) has no address sanitizer: the kernel tests run without it"

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

# PEERS=DIR, a directory with venv-llama and venv-hf, measures these engines too and writes a page of results.
bench: model $(VENV)/.bench
	mkdir -p build
	$(BIN)/ridgeline bench engine --json build/bench.json \
	  $(if $(PEERS),--peers $(PEERS) --markdown build/bench.md)
	$(BIN)/python -m benchmarks.server_overhead --json build/server_overhead.json
	$(BIN)/python -m benchmarks.soak --requests 2000 --json build/soak.json

# The kernel tests on a native module built with sanitizers. It lies in a copy of the package that comes before
# the installed one: the interpreter that made the environment reads its packages, but not its import hooks.
sanitize: SANITIZERS := address,undefined
sanitize: PRELOADED := libasan.so libstdc++.so
sanitize: build/sanitize
sanitize-thread: SANITIZERS := thread
sanitize-thread: PRELOADED := libtsan.so libstdc++.so
sanitize-thread: build/sanitize-thread

.PHONY: build/sanitize build/sanitize-thread
build/sanitize build/sanitize-thread: $(VENV)/.tools
	$(BIN)/cmake -S . -B $@ -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSKBUILD_PROJECT_NAME=ridgeline \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	  -DRIDGELINE_SANITIZE=$(SANITIZERS) > /dev/null
	$(BIN)/cmake --build $@
	rm -rf $@/site && mkdir $@/site && cp -r src/ridgeline $@/site && rm -f $@/site/ridgeline/kernels/_native*.so
	cp $@/_native*.so $@/site/ridgeline/kernels
	LD_PRELOAD="$(foreach library,$(PRELOADED),$(shell $(CXX) -print-file-name=$(library)))" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1 PYTHONMALLOC=malloc OPENBLAS_NUM_THREADS=1 \
	  PYTHONPATH=$@/site:$(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
	  $(shell $(BIN)/python -c "import sys; print(sys._base_executable)") -m pytest -q tests/kernels \
	  -p no:cacheprovider

# Every figure of the book is measured anew, here; the page lies in build/book/site.
book: model $(VENV)/.book
	$(BIN)/python docs/book/build.py build/book/chapters
	$(BIN)/python -m mkdocs build -q --strict

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

$(VENV)/.bench: $(VENV)/.built
	$(PIP) install -q -c constraints.txt --no-build-isolation -e ".[bench]"
	touch $@

$(VENV)/.book: $(VENV)/.built
	$(PIP) install -q -c constraints.txt --no-build-isolation -e ".[docs]"
	touch $@
