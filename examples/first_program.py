"""Every rank adds its numbers to those of the others.

Run: mpirun -n 4 python -m mpi4py examples/first_program.py
"""

import numpy as np
from mpi4py import MPI

import pynccl

with pynccl.Communicator.from_mpi(MPI.COMM_WORLD) as comm:
    x = comm.asarray(np.arange(4, dtype=np.float32) + comm.rank)
    before = x.get()
    comm.allreduce(x, op=pynccl.SUM)
    print(f"rank {comm.rank} of {comm.nranks}: {before} -> {x.get()}")
