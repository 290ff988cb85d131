# `make demo` and `make test` work on a fresh machine with Python 3.11, gcc and make.
# TORCH_INDEX=https://download.pytorch.org/whl/cpu where plain pip gives a CUDA build.

PYTHON ?= python3
TORCH_INDEX ?=

BIN := .venv/bin
DEMO := .torchproof/demo
PIP := $(BIN)/python -m pip -qq
INSTALLED := .venv/.installed

# Two notices that are no errors: pip runs as root in a container, or is not the newest.
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Without compiled files, each of the hundreds of processes of the tests compiles the
# whole source again.
unexport PYTHONDONTWRITEBYTECODE

# An index of torch builds need not carry the pinned versions of what torch depends on:
# those come from the default index in the second step, which installs all the rest.
TORCH = $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX) torch==2.13.0)

.PHONY: demo test lint style types pytest format docs site prove prove-gpu compat dist clean

# One thread: with two on two cores, every other program on the machine disturbs the
# times. Exit code 1 is a finding; 2 is a failure.
demo: export OMP_NUM_THREADS := 1
demo: $(INSTALLED)
	@rm -rf $(DEMO); mkdir -p $(DEMO)
	@echo; echo "== 1. A vision-language model with problems: where, why, and the fix"; echo
	$(BIN)/torchproof check workload:nanovlm-original --device cpu --effort quick -q \
		|| test $$? -eq 1
	@$(BIN)/torchproof show --format html -q -o $(DEMO)/check.html
	@echo; echo "== 2. The same model with the fixes"; echo
	$(BIN)/torchproof check workload:nanovlm --device cpu --effort quick -q
	@echo; echo "== 3. Another model: what compiling gains on this CPU (about a minute)"; echo
	$(BIN)/torchproof bench workload:arrcoc --device cpu --strategies full --repeats 1
	@$(BIN)/torchproof show --format html -q -o $(DEMO)/bench.html
	@echo; echo "== Results"; echo
	@echo "Open in browser: $(CURDIR)/$(DEMO)/check.html"
	@echo "                 $(CURDIR)/$(DEMO)/bench.html"
	@echo "Saved runs:      $(BIN)/torchproof show --list"
	@echo; echo "== Next: your own model"; echo
	@echo "A script that trains or serves it, as it is:"
	@echo "  $(BIN)/torchproof check path/to/your_script.py"
	@echo "Or three lines in a file, for example my_model.py:"
	@echo "  import torch"
	@echo "  def make():"
	@echo "      return torch.nn.Linear(8, 8), [(torch.randn(4, 8),)]  # model, calls"
	@echo "and then"
	@echo "  $(BIN)/torchproof check my_model.py:make"
	@echo "  $(BIN)/torchproof tune my_model.py:make"

# mypy has one core for half a minute: the tests run beside it, not after it. Three
# processes on two cores, because each often waits for processes of its own. One thread:
# more of them would only wait.
test: export OMP_NUM_THREADS := 1
test: style
	@$(MAKE) --no-print-directory -j 2 types pytest

lint: style types

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports > .venv/imports.txt || { cat .venv/imports.txt; exit 1; }

types: $(INSTALLED)
	$(BIN)/mypy

pytest: $(INSTALLED)
	$(BIN)/pytest -q -n 3 --dist worksteal -m "not gpu and not slow"

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)
	$(BIN)/python scripts/docs/generate.py

# Strict: a dead link or anchor fails. NO_MKDOCS_2_WARNING mutes an announcement.
site: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Built $(CURDIR)/site/index.html. To search in it, serve it:"
	@echo "  python3 -m http.server --directory site"

# Every test and every measurement of torchproof itself; it continues where it was cut
# off. `scripts/prove.py --list` lists what it proves; the result is one file.
prove: $(INSTALLED)
	@# Ray clusters, trainers, services: without the extras, their tests are skipped.
	$(PIP) install -c constraints.txt -e '.[ray,integrations]'
	$(BIN)/python scripts/prove.py
	$(BIN)/python scripts/docs/generate.py

# The same for what needs a GPU, with twelve tests at a time; those that measure the whole
# GPU run after the others.
prove-gpu: $(INSTALLED)
	$(BIN)/python scripts/prove.py --gpu
	$(BIN)/python scripts/docs/generate.py

# The tests of hooks, rules and runtime on the oldest, the pinned and the newest torch,
# each in an environment of its own (about 3 GB for each that is not a CPU build). With
# other Pythons: PYTHONS="python3.13 python3.14"; with other versions: VERSIONS=2.12.0.
compat: $(INSTALLED)
	$(BIN)/python scripts/compat.py $(VERSIONS) $(PYTHONS:%=--python %) \
		$(if $(TORCH_INDEX),--index $(TORCH_INDEX))
	$(BIN)/python scripts/docs/generate.py

# The wheel and the source distribution, each used in an empty environment.
dist: $(INSTALLED)
	$(BIN)/python scripts/distributions.py $(if $(TORCH_INDEX),--index $(TORCH_INDEX))

clean:
	rm -rf .venv .compat .torchproof .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# Python compiles what it imports: pip would compile all of it, with one core.
	$(if $(TORCH),$(PIP) install --no-compile -c constraints.txt $(TORCH))
	$(PIP) install --no-compile -c constraints.txt -e '.[dev]'
	@touch $@
