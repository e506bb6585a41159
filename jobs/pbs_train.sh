#!/bin/bash
#PBS -N pynccl-train
#PBS -j oe
#PBS -l select=2:ncpus=4:mpiprocs=4:ngpus=4
#PBS -l walltime=00:30:00
# Trains a classifier, data-parallel, and compares it with the same training by one rank.
set -euo pipefail

# The site's values: how MPI and NCCL come in, and the environment that has pynccl.
modules=${modules:-}            # such as "openmpi nccl"; empty where nothing is loaded
environment=${environment:-.venv}

ranks=${ranks:-8}               # mpiprocs times the chunks of select
cd "$PBS_O_WORKDIR"
# shellcheck disable=SC2086  # several words
[ -z "$modules" ] || module load $modules
# shellcheck disable=SC1091
. "$environment/bin/activate"
export PYNCCL_BACKEND=${PYNCCL_BACKEND:-nccl}

mpirun -n "$ranks" python -m mpi4py examples/data_parallel.py
