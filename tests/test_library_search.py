"""Which libnccl is loaded, from where, and what is said where there is none. Each in a process."""

import json
import os
import pathlib

import pytest
from helpers import headers
from helpers.processes import python

REAL = headers.NCCL.parent / "lib/libnccl.so.2"

REPORT = """
import json
from pynccl import library
try:
    loaded = library.load()
    told = {"path": loaded.path, "version": loaded.version, "where": loaded.where,
            "backend": loaded.backend}
except Exception as error:
    told = {"error": type(error).__name__, "text": str(error),
            "import": isinstance(error, ImportError)}
told["search"] = [list(map(str, (c.where, c.path, c.outcome))) for c in library.search()]
print(json.dumps(told))
"""


@pytest.fixture
def real():
    if not REAL.exists():
        pytest.skip("needs the wheel nvidia-nccl-cu13, which holds libnccl")
    return REAL


def report(**environment):
    environment = {"LD_LIBRARY_PATH": None, "NCCL_HOME": None, **environment}
    return json.loads(python(REPORT, **environment).stdout.splitlines()[-1])


def test_the_wheel_is_found_in_the_environment(real):
    told = report(PYNCCL_BACKEND="nccl")
    assert told["path"] == str(real)
    assert told["version"] >= 23203
    assert told["where"].startswith("wheel nvidia-nccl-cu13 2.")
    assert told["search"] == [[told["where"], str(real), "loaded"]]


def test_the_named_library_comes_before_any_search(real, tmp_path):
    named = tmp_path / "mine.so"
    named.symlink_to(real)
    told = report(PYNCCL_BACKEND="nccl", PYNCCL_LIBRARY=str(named))
    assert (told["path"], told["where"]) == (str(named), "PYNCCL_LIBRARY")


def test_a_sites_module_comes_before_the_wheels(real, tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnccl.so.2").symlink_to(real)
    told = report(PYNCCL_BACKEND="nccl", LD_LIBRARY_PATH=f"{tmp_path}:{folder}")
    assert (told["path"], told["where"]) == (str(folder / "libnccl.so.2"), "LD_LIBRARY_PATH")
    assert told["search"][0][2] == "no such file"
    told = report(PYNCCL_BACKEND="nccl", NCCL_HOME=str(tmp_path))
    assert told["where"] == "NCCL_HOME"


def test_a_library_that_the_process_has_loaded_is_taken(real, tmp_path):
    copy = tmp_path / "libnccl.so.2.99"
    copy.symlink_to(real)
    program = f"import ctypes; ctypes.CDLL({str(copy)!r})\n" + REPORT
    told = json.loads(python(program, PYNCCL_BACKEND="nccl").stdout)
    assert told["where"] == "already loaded in this process"
    assert pathlib.Path(told["path"]).samefile(real)


def test_no_library_is_one_error_with_the_whole_search(tmp_path):
    missing = str(tmp_path / "nothing.so")
    told = report(PYNCCL_BACKEND="nccl", PYNCCL_LIBRARY=missing)
    assert told["error"] == "NCCLLibraryNotFound"
    assert told["import"]
    for part in (missing, "PYNCCL_LIBRARY", "PYNCCL_BACKEND=emulator"):
        assert part in told["text"]
    assert told["search"] == [["PYNCCL_LIBRARY", missing, "no such file"]]


def test_a_file_that_is_no_libnccl_is_refused(tmp_path):
    other = next(path for path in ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6") if
                 os.path.exists(path))
    told = report(PYNCCL_BACKEND="nccl", PYNCCL_LIBRARY=other)
    assert "has no ncclGetVersion" in told["text"]


def test_a_backend_that_does_not_exist_is_refused():
    told = report(PYNCCL_BACKEND="gloo")
    assert told["error"] == "ValueError"
    assert "nccl, emulator, auto" in told["text"]


def test_auto_says_in_one_line_that_it_took_the_emulator():
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("needs a machine without a GPU")
    program = "from pynccl import library; print(library.load().backend)"
    done = python(program, PYNCCL_BACKEND="auto", OMPI_COMM_WORLD_RANK="0")
    assert done.stdout == "emulator\n"
    assert done.stderr.startswith("pynccl: running on the CPU emulator: there is no CUDA driver")
    assert len(done.stderr.splitlines()) == 1
    assert python(program, PYNCCL_BACKEND="auto", OMPI_COMM_WORLD_RANK="1").stderr == ""


def test_the_real_library_answers_without_a_gpu(real):
    program = """
import ctypes
import pynccl
from pynccl import bindings
print(pynccl.get_version(), len(bytes(pynccl.get_unique_id())), pynccl.get_error_string(4))
print(all(bindings.available(name) for name in dir(bindings) if name.startswith("nccl")))
print(pynccl.params["NCCL_DEBUG_SUBSYS"])
"""
    lines = python(program, PYNCCL_BACKEND="nccl").stdout.splitlines()
    assert " 128 invalid argument" in lines[0]
    assert lines[1:] == ["True", "INIT,ENV,BOOTSTRAP"]


def test_a_communicator_without_a_gpu_is_a_good_message(real):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("needs a machine without a GPU")
    program = """
import pynccl
pynccl.Communicator.init(1, 0, pynccl.get_unique_id())
"""
    error = python(program, check=False, PYNCCL_BACKEND="nccl").stderr.splitlines()[-1]
    assert error.startswith("pynccl.errors.NCCLLibraryNotFound: NCCL: not found: ")
    for part in ("no CUDA driver", str(real), "PYNCCL_BACKEND=emulator"):
        assert part in error


def test_the_real_librarys_cuda_error_names_the_way_out(real):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("needs a machine without a GPU")
    program = """
import ctypes
from pynccl import bindings, errors
from pynccl.types import UniqueIdStruct
unique_id, comm = UniqueIdStruct(), ctypes.c_void_p()
bindings.ncclGetUniqueId(unique_id)
try:
    errors.check(bindings.ncclCommInitRank(comm, 1, unique_id, 0), "ncclCommInitRank")
except errors.NCCLCudaError as error:
    print(error.result.name, error.function, error)
"""
    told = python(program, PYNCCL_BACKEND="nccl").stdout
    assert told.startswith("UNHANDLED_CUDA_ERROR ncclCommInitRank ncclCommInitRank: ")
    assert "PYNCCL_BACKEND=emulator" in told


def test_the_emulator_refuses_a_process_that_has_a_real_libnccl(real):
    program = f"import ctypes; ctypes.CDLL({str(real)!r})\n" + REPORT
    told = json.loads(python(program, PYNCCL_BACKEND="emulator").stdout)
    assert told["error"] == "NCCLLibraryNotFound"
    assert "already in this process" in told["text"]


def test_importing_the_package_loads_neither_mpi_nor_cuda():
    program = """
import sys
import pynccl
print(sorted(m for m in sys.modules if m.partition(".")[0] in ("mpi4py", "cuda", "ml_dtypes")))
print(pynccl.__version__, pynccl.SUM.name, len(dir(pynccl)) > 50)
"""
    assert python(program).stdout == "[]\n0.1.0 SUM True\n"


def test_every_public_name_exists():
    import pynccl

    for name in pynccl.__all__:
        assert getattr(pynccl, name) is not None, name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pynccl.nonsense
