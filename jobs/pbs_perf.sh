#!/bin/bash
#PBS -N pynccl-perf
#PBS -j oe
#PBS -l select=2:ncpus=4:mpiprocs=4:ngpus=4
#PBS -l walltime=00:15:00
# Measures the all-reduce on all GPUs of the job.
set -euo pipefail

# The site's values: how MPI and NCCL come in, and the environment that has pynccl.
modules=${modules:-}            # such as "openmpi nccl"; empty where nothing is loaded
environment=${environment:-.venv}
options=${options:--b 8 -e 128M -f 2}    # python -m pynccl perf all_reduce --help

ranks=${ranks:-8}               # mpiprocs times the chunks of select
cd "$PBS_O_WORKDIR"
# shellcheck disable=SC2086  # several words
[ -z "$modules" ] || module load $modules
# shellcheck disable=SC1091
. "$environment/bin/activate"
export PYNCCL_BACKEND=${PYNCCL_BACKEND:-nccl}

# shellcheck disable=SC2086  # several words
mpirun -n "$ranks" python -m mpi4py -m pynccl perf all_reduce $options
