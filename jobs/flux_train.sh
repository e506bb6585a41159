#!/bin/bash
#flux: --job-name=pynccl-train
#flux: --nodes=2
#flux: --time-limit=30m
#flux: --exclusive
# Trains a classifier, data-parallel, and compares it with the same training by one rank.
set -euo pipefail

# The site's values: how MPI and NCCL come in, and the environment that has pynccl.
modules=${modules:-}            # such as "openmpi nccl"; empty where nothing is loaded
environment=${environment:-.venv}

# shellcheck disable=SC2086  # several words
[ -z "$modules" ] || module load $modules
# shellcheck disable=SC1091
. "$environment/bin/activate"
export PYNCCL_BACKEND=${PYNCCL_BACKEND:-nccl}

flux run --nodes=2 --ntasks=8 --gpus-per-task=1 python -m mpi4py examples/data_parallel.py
