/* A C program that uses MPI itself and hosts Python, which adds GPU arrays over the program's own
 * communicator with NCCL.
 *
 * It calls MPI_Init, makes a communicator, and hands that to Python as a Fortran handle. mpi4py
 * finds MPI initialized and leaves it so: the program calls MPI_Finalize, after Python's end.
 *
 *   mpicc embed.c -o embed $(python3-config --cflags --embed) $(python3-config --ldflags --embed)
 *   mpirun -n 4 ./embed
 *
 * Python finds the packages of the virtual environment that is active (first on PATH).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <mpi.h>
#include <stdio.h>

static const char program[] =
    "import numpy as np\n"
    "from mpi4py import MPI\n"
    "from pynccl.mpi import Comm\n"
    "\n"
    "def add(handle):\n"
    "    comm = Comm(MPI.Comm.f2py(handle))\n"
    "    x = comm.nccl.asarray(np.full(4, comm.rank + 1.0))\n"
    "    comm.Allreduce(MPI.IN_PLACE, x)\n"
    "    return float(x.get()[0])\n";

/* Returns what the ranks of a communicator add to, or -1. */
static double add_with_python(MPI_Comm comm) {
  double sum = -1;
  PyObject* module = PyImport_AddModule("__main__");
  PyObject* names = module ? PyModule_GetDict(module) : NULL;
  PyObject* done = names ? PyRun_String(program, Py_file_input, names, names) : NULL;
  PyObject* add = done ? PyDict_GetItemString(names, "add") : NULL;
  PyObject* result = add ? PyObject_CallFunction(add, "i", (int)MPI_Comm_c2f(comm)) : NULL;
  if (result) sum = PyFloat_AsDouble(result);
  if (PyErr_Occurred()) PyErr_Print();
  Py_XDECREF(result);
  Py_XDECREF(done);
  return sum;
}

int main(int argc, char** argv) {
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);

  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  int rank, size;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);

  Py_Initialize();
  double sum = add_with_python(comm);
  if (sum < 0) MPI_Abort(comm, 1); /* the other ranks would wait for this one */
  printf("rank %d of %d: %g\n", rank, size, sum);

  /* This frees NCCL's communicator too; it must come while Python is there. */
  MPI_Comm_free(&comm);
  Py_FinalizeEx();
  MPI_Finalize();
  return 0;
}
