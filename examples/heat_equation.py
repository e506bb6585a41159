"""Heat in a square plate: one solver, with MPI on host arrays and with NCCL on GPU arrays.

Run: mpirun -n 4 python -m mpi4py examples/heat_equation.py [--picture heat.png]

Three edges of the plate are kept cold and one is heated, as sin(pi x). Each rank has some rows of
the plate and one row of each neighbour's beside them (its halo). Every step replaces each point by
the mean of its four neighbours; the ranks exchange the rows at their borders, and now and then
agree on the greatest change, to stop when it is small.

``solve`` is the whole of it, and does not tell the two apart: what differs between the runs is the
communicator that it is given, and where the arrays are. ``pynccl.mpi.Request.Waitall`` waits for
MPI's own requests as well.
"""

import argparse
import time
from contextlib import nullcontext

import numpy as np
from mpi4py import MPI

from pynccl.mpi import Comm, Request


def solve(comm, field, change, arithmetic, steps, tolerance):
    """Relax the field until it changes by less than the tolerance. Returns the steps done.

    Args:
        field: this rank's rows, and one more on either side; float64
        change: one element of working space, beside the field
        arithmetic: makes a context whose value is the array module for the field
    """
    up = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    down = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
    for step in range(1, steps + 1):
        Request.Waitall(
            [
                comm.Irecv(field[0], up, tag=1),
                comm.Irecv(field[-1], down, tag=2),
                comm.Isend(field[1], up, tag=2),
                comm.Isend(field[-2], down, tag=1),
            ]
        )
        with arithmetic() as xp:
            u = xp.asarray(field)
            mean = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
            xp.asarray(change)[0] = abs(mean - u[1:-1, 1:-1]).max()
            u[1:-1, 1:-1] = mean
        if step % 50 == 0:
            comm.Allreduce(MPI.IN_PLACE, change, MPI.MAX)
            with arithmetic() as xp:
                if float(xp.asarray(change)[0]) < tolerance:
                    return step
    return steps


def rows_of(rank, nranks, size):
    """Return the first inner row of a rank and the one after its last."""
    inner = size - 2
    return 1 + rank * inner // nranks, 1 + (rank + 1) * inner // nranks


def plate(rank, nranks, size):
    """Return a rank's part of the plate at the start, with its halo: cold but for the last row."""
    first, end = rows_of(rank, nranks, size)
    field = np.zeros((end - first + 2, size))
    if rank == nranks - 1:
        field[-1] = np.sin(np.pi * np.linspace(0, 1, size))
    return field


def on_host(arguments):
    comm = MPI.COMM_WORLD
    field, change = plate(comm.rank, comm.size, arguments.size), np.zeros(1)
    steps = solve(
        comm, field, change, lambda: nullcontext(np), arguments.steps, arguments.tolerance
    )
    return field, steps


def on_gpus(arguments):
    comm = Comm(MPI.COMM_WORLD)
    field = comm.nccl.asarray(plate(comm.rank, comm.size, arguments.size))
    change = comm.nccl.asarray(np.zeros(1))
    steps = solve(comm, field, change, comm.nccl.compute, arguments.steps, arguments.tolerance)
    return field.get(), steps


def whole(field):
    """Return the inner rows of all ranks, on rank 0."""
    parts = MPI.COMM_WORLD.gather(field[1:-1])
    return np.concatenate(parts) if parts is not None else None


def exact(size):
    """Return the temperatures in the end, by formula, of the inner rows."""
    at = np.linspace(0, 1, size)
    return np.sinh(np.pi * at[1:-1, None]) / np.sinh(np.pi) * np.sin(np.pi * at)


def draw(field, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.2, 4.2), layout="constrained")
    image = axes.imshow(field, origin="lower", extent=(0, 1, 0, 1), cmap="inferno", vmin=0, vmax=1)
    points = np.linspace(0, 1, field.shape[1]), np.linspace(0, 1, field.shape[0])
    axes.contour(*points, field, levels=np.arange(0.1, 1, 0.1), colors="w", linewidths=0.6)
    axes.set(xlabel="x", ylabel="y", title="temperature of the plate")
    figure.colorbar(image)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description="Heat in a plate, with MPI and with NCCL.")
    parser.add_argument("--size", type=int, default=32, help="points along an edge")
    parser.add_argument("--steps", type=int, default=5000, help="at most so many")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="stop at this change")
    parser.add_argument("--picture", help="write the field as an image to this file")
    arguments = parser.parse_args()
    if arguments.picture:
        import matplotlib  # noqa: F401 - missing, it had better be missed now

    world = MPI.COMM_WORLD
    if arguments.size - 2 < world.size:
        raise SystemExit(f"--size must be at least {world.size + 2} for {world.size} ranks")

    results = {}
    for name, run in {"MPI, host arrays": on_host, "NCCL, GPU arrays": on_gpus}.items():
        start = time.perf_counter()
        field, steps = run(arguments)
        seconds = time.perf_counter() - start
        results[name] = whole(field)
        if world.rank == 0:
            error = abs(results[name] - exact(arguments.size)).max()
            print(
                f"{name}: {steps} steps in {seconds:.2f} s; "
                f"the plate differs from the exact solution by at most {error:.1e}"
            )
    if world.rank == 0:
        host, gpu = results.values()
        print(f"the two runs differ by at most {abs(host - gpu).max():g}")
        if arguments.picture:
            draw(gpu, arguments.picture)
            print(f"wrote {arguments.picture}")


if __name__ == "__main__":
    main()
