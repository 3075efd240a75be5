# `make demo` and `make test` do all their set-up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FOR_DEMO := $(VENV)/.installed-for-demo
SOURCES := aioretry tests examples
PYTEST := $(BIN)/python -m pytest --dist worksteal
# A suite that starts thousands of processes should not compile the package in each of them.
export PYTHONDONTWRITEBYTECODE :=
# Most tests wait most of the time: for elections, replies that are held, processes.
# More workers have more servers, each of which takes a hundredth of a core to be idle.
AT_ONCE ?= 6

.PHONY: help demo quick test test-long test-all test-installed check pytest matrix \
	bench bench-bulk bench-imports bench-sizes bench-service bench-proxy bench-failovers bench-storms bench-streams load chaos simulate docs format clean

help:
	@echo "make demo         watch writes survive failovers on a real replica set"
	@echo "make quick        lint, types and the tests that need no server (2 minutes)"
	@echo "make check        lint and types"
	@echo "make test         the tests, some in a short form, some as a sample (12 minutes)"
	@echo "make test-long    what is left out of that, and in full length what is shorter in it"
	@echo "make test-all     lint, types and all tests in full length"
	@echo "make test-installed  what needs no server, with the wheel in place of the checkout"
	@echo "make matrix       every server version, PyMongo, Python and event loop (two hours)"
	@echo "make bench        throughput beside Motor and PyMongo's AsyncMongoClient (15 minutes);"
	@echo "                  ARGS=--costs, --storm, --memory, --soak measure something else"
	@echo "make bench-imports  what an import costs, beside the driver's (1 minute)"
	@echo "make bench-bulk   insert_many and bulk_write beside Motor or AsyncMongoClient"
	@echo "make bench-sizes  CPU time and stalls by the size of documents, beside both (5 minutes)"
	@echo "make bench-service  a watched service of FastAPI on each client (2 minutes)"
	@echo "make bench-proxy  what the test kit's proxy costs an operation"
	@echo "make bench-failovers  what a failover costs, beside both; ARGS=freeze, rolling, ..."
	@echo "make bench-storms  what the next primary meets after an outage, by a model (5 minutes)"
	@echo "make bench-streams  aggregates that follow changes, beside a full count; ARGS=--speed"
	@echo "make load         orders for the example shop while primaries die, beside Motor (5 minutes)"
	@echo "make chaos        random faults under a mixed load, beside Motor (20 minutes)"
	@echo "make simulate     the same in a simulated world, with virtual time; ARGS='--hours 4', ..."
	@echo "                  demo, each bench but the proxy's and the imports', load and chaos take ARGS='--client asyncio'"
	@echo "make docs         the site, in docs/_build/html"
	@echo "make format       format and sort imports"

# What the demo needs, and no more: it is what somebody runs who is only looking.
$(FOR_DEMO): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group demo
	touch $@

$(STAMP): $(FOR_DEMO)
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

demo: $(FOR_DEMO)
	$(BIN)/python -m examples.demo $(ARGS)

quick: check
	$(PYTEST) -n 5 -m "not server and not more and not slow and not matrix" $(ARGS)

test: pytest

test-all: check
	AIORETRY_FULL=1 $(PYTEST) -n $(AT_ONCE) $(ARGS)

test-long: $(STAMP)
	$(PYTEST) -n $(AT_ONCE) -m "slow and not long and not matrix" $(ARGS)
	AIORETRY_FULL=1 $(PYTEST) -n $(AT_ONCE) -m "long and not matrix" $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/pyright
	# What users' type checkers see, from a folder without our settings.
	cd / && PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)" \
		pyright --verifytypes aioretry --ignoreexternal

pytest: $(STAMP)
	$(PYTEST) -n $(AT_ONCE) -m "not slow and not matrix" $(ARGS)

# The wheel, without the package of the checkout.
test-installed: $(STAMP)
	rm -rf build && mkdir -p build/tests
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build .
	$(PYTHON) -m venv build/venv
	build/venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	build/venv/bin/python -m pip install --quiet --group test --group services build/*.whl
	cp -r tests examples docs *.md LICENSE Makefile pyproject.toml build/tests
	cd build/tests && ../venv/bin/python -m pytest -n 5 -m "not server and not more and not slow and not matrix" $(ARGS)

matrix: $(STAMP)
	$(BIN)/python -m tests.matrix $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks $(ARGS)

bench-bulk: $(STAMP)
	$(BIN)/python -m tests.benchmarks.bulk $(ARGS)

bench-imports: $(STAMP)
	$(BIN)/python -m tests.benchmarks.imports $(ARGS)

bench-sizes: $(STAMP)
	$(BIN)/python -m tests.benchmarks.sizes $(ARGS)

bench-service: $(STAMP)
	$(BIN)/python -m tests.benchmarks.service $(ARGS)

bench-proxy: $(STAMP)
	$(BIN)/python -m tests.benchmarks.proxy $(ARGS)

bench-failovers: $(STAMP)
	$(BIN)/python -m tests.benchmarks.failovers $(ARGS)

bench-storms: $(STAMP)
	$(BIN)/python -m tests.benchmarks.storms $(ARGS)

bench-streams: $(STAMP)
	$(BIN)/python -m tests.benchmarks.streams $(ARGS)

load: $(STAMP)
	$(BIN)/python -m tests.load $(ARGS)

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos $(ARGS)

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -n -b html docs docs/_build/html

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) build docs/_build .matrix .mypy_cache .ruff_cache .pytest_cache .hypothesis
