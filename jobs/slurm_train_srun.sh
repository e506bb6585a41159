#!/bin/bash
#SBATCH --job-name=pynccl-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --time=00:30:00
# The same training, launched by srun: MPICH, or an Open MPI built for the pmi that Slurm offers.
set -euo pipefail

# The site's values: how MPI and NCCL come in, and the environment that has pynccl.
modules=${modules:-}            # such as "openmpi nccl"; empty where nothing is loaded
environment=${environment:-.venv}
pmi=${pmi:-pmi2}                # what srun --mpi=list offers and MPICH was built with

# shellcheck disable=SC2086  # several words
[ -z "$modules" ] || module load $modules
# shellcheck disable=SC1091
. "$environment/bin/activate"
export PYNCCL_BACKEND=${PYNCCL_BACKEND:-nccl}

srun --mpi="$pmi" python -m mpi4py examples/data_parallel.py
