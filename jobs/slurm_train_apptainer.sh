#!/bin/bash
#SBATCH --job-name=pynccl-container
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=00:30:00
# The same training in a container: MPI's processes are started outside, one container each.
set -euo pipefail

# The site's values. The container holds Python, pynccl and an MPI of the kind that mpirun is.
modules=${modules:-}            # such as "openmpi apptainer"; empty where nothing is loaded
image=${image:-pynccl.sif}
pmi=${pmi:-pmix}                # what srun --mpi=list offers and the container's MPI was built with

# shellcheck disable=SC2086  # several words
[ -z "$modules" ] || module load $modules
export PYNCCL_BACKEND=${PYNCCL_BACKEND:-nccl}

srun --mpi="$pmi" apptainer exec --nv --bind "$PWD" --pwd "$PWD" "$image" \
    python -m mpi4py examples/data_parallel.py
