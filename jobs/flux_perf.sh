#!/bin/bash
#flux: --job-name=pynccl-perf
#flux: --nodes=2
#flux: --time-limit=15m
#flux: --exclusive
# Measures the all-reduce on all GPUs of the job.
set -euo pipefail

# The site's values: how MPI and NCCL come in, and the environment that has pynccl.
modules=${modules:-}            # such as "openmpi nccl"; empty where nothing is loaded
environment=${environment:-.venv}
options=${options:--b 8 -e 128M -f 2}    # python -m pynccl perf all_reduce --help

# shellcheck disable=SC2086  # several words
[ -z "$modules" ] || module load $modules
# shellcheck disable=SC1091
. "$environment/bin/activate"
export PYNCCL_BACKEND=${PYNCCL_BACKEND:-nccl}

# shellcheck disable=SC2086  # several words
flux run --nodes=2 --ntasks=8 --gpus-per-task=1 python -m mpi4py -m pynccl perf all_reduce $options
