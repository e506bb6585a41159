#!/bin/bash
#BSUB -J pynccl-doctor
#BSUB -n 8
#BSUB -R "span[ptile=4]"
#BSUB -gpu "num=4/host"
#BSUB -W 00:05
# Compares the ranks of a job of this size, and tells what would keep one from running.
set -euo pipefail

# The site's values: how MPI and NCCL come in, and the environment that has pynccl.
modules=${modules:-}            # such as "openmpi nccl"; empty where nothing is loaded
environment=${environment:-.venv}

# shellcheck disable=SC2086  # several words
[ -z "$modules" ] || module load $modules
# shellcheck disable=SC1091
. "$environment/bin/activate"
export PYNCCL_BACKEND=${PYNCCL_BACKEND:-nccl}

mpirun -n "$LSB_DJOB_NUMPROC" python -m mpi4py -m pynccl doctor
