"""python -m pynccl doctor: each problem is provoked, and told with its remedy and exit status."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys

import pytest
from helpers.launch import REPOSITORY, mpirun

DRIVER = """
extern "C" {
int cuInit(unsigned) { return STATUS; }
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
}
"""
NCCL = 'extern "C" int ncclGetVersion(int* version) { *version = VERSION; return 0; }'


def doctor(*, prefix=(), before=None, **environment):
    """Run the command; return its exit status, and the findings by check.

    A value of None takes a variable out of the environment. ``before`` is called in the child.
    """
    env = {**os.environ, **{k: str(v) for k, v in environment.items() if v is not None}}
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(environment.get("PYTHONPATH") or ""), str(REPOSITORY)])
    )
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "pynccl", "doctor", "--json"],
        env=env,
        preexec_fn=before,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)["findings"]
    assert all(one["remedy"] for one in found)
    assert done.returncode == any(one["fatal"] for one in found)
    return done.returncode, {one["check"]: one["text"] for one in found}


def compile_library(path, source, **macros):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    path.parent.mkdir(exist_ok=True)
    code = path.with_suffix(".cc")
    code.write_text(source)
    defined = [f"-D{name}={value}" for name, value in macros.items()]
    subprocess.run([compiler, "-shared", "-fPIC", *defined, code, "-o", path], check=True)
    return path


def write_distribution(folder, name, version):
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def without_gpu():
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("needs a machine without a GPU")


def test_a_machine_that_is_right_has_exit_status_0():
    assert doctor() == (0, {})


def test_a_backend_that_does_not_exist_is_told():
    status, found = doctor(PYNCCL_BACKEND="gloo")
    assert status == 1
    assert "'gloo'" in found["backend"]


def test_a_missing_driver_is_told():
    without_gpu()
    status, found = doctor(PYNCCL_BACKEND="nccl")
    assert status == 1
    assert "there is no CUDA driver" in found["driver"]


@pytest.mark.parametrize(
    ("macros", "text"),
    [
        ({"STATUS": 100, "COUNT": 0}, "the CUDA driver does not start: cuInit returned 100"),
        ({"STATUS": 0, "COUNT": 0}, "shows no GPU (CUDA_VISIBLE_DEVICES is '5')"),
    ],
    ids=["does_not_start", "no_gpu"],
)
def test_a_driver_without_a_gpu_is_told(tmp_path, macros, text):
    compile_library(tmp_path / "libcuda.so.1", DRIVER, **macros)
    status, found = doctor(
        PYNCCL_BACKEND="nccl", LD_LIBRARY_PATH=tmp_path, CUDA_VISIBLE_DEVICES="5"
    )
    assert status == 1
    assert text in found["driver"]


def test_a_missing_libnccl_is_told():
    status, found = doctor(PYNCCL_BACKEND="nccl", PYNCCL_LIBRARY="/nowhere/libnccl.so.2")
    assert status == 1
    assert "/nowhere/libnccl.so.2" in found["library"]


def test_a_libnccl_that_is_too_old_is_told(tmp_path):
    old = compile_library(tmp_path / "libnccl.so.2", NCCL, VERSION=21602)
    status, found = doctor(PYNCCL_BACKEND="nccl", PYNCCL_LIBRARY=old)
    assert status == 1
    assert "2.16.2" in found["library"]
    assert "2.18.1" in found["library"]


def test_different_copies_of_libnccl_are_told_with_their_releases(tmp_path):
    one = compile_library(tmp_path / "a" / "libnccl.so.2", NCCL, VERSION=22005)
    other = compile_library(tmp_path / "b" / "libnccl.so.2", NCCL, VERSION=22203)
    _, found = doctor(PYNCCL_BACKEND="nccl", LD_LIBRARY_PATH=f"{one.parent}:{other.parent}")
    for part in ("NCCL 2.20.5", str(one), "NCCL 2.22.3", str(other), "LD_LIBRARY_PATH"):
        assert part in found["copies"]


def test_a_second_libnccl_in_the_process_is_told(tmp_path):
    first = compile_library(tmp_path / "a" / "libnccl.so.2", NCCL, VERSION=22005)
    second = compile_library(tmp_path / "b" / "libnccl.so.2", NCCL, VERSION=22203)
    status, found = doctor(
        PYNCCL_BACKEND="nccl", LD_PRELOAD=f"{first} {second}", PYNCCL_LIBRARY=first
    )
    assert status == 1
    assert str(first) in found["loaded"]
    assert str(second) in found["loaded"]


def test_the_wheels_for_two_cudas_together_are_told(tmp_path):
    write_distribution(tmp_path, "nvidia-nccl-cu12", "2.27.3")
    write_distribution(tmp_path, "nvidia-nccl-cu13", "2.32.3")
    status, found = doctor(PYNCCL_BACKEND="nccl", PYTHONPATH=tmp_path)
    assert status == 1
    assert "nvidia-nccl-cu12 2.27.3" in found["wheels"]


@pytest.mark.parametrize("listed", ["ib7", "=et", "^lo,e,i,v,d,b"])
def test_an_interface_that_does_not_exist_is_told(listed):
    if listed.startswith("^"):
        listed = "^" + ",".join(os.listdir("/sys/class/net"))
    status, found = doctor(PYNCCL_BACKEND="nccl", NCCL_SOCKET_IFNAME=listed)
    assert status == 1
    assert f"NCCL_SOCKET_IFNAME={listed} selects no network interface" in found["interface"]
    assert "lo" in found["interface"]


@pytest.mark.parametrize("listed", ["lo", "=lo", "l,ib7", "^ib7"])
def test_an_interface_that_exists_is_not_told(listed):
    _, found = doctor(PYNCCL_BACKEND="nccl", NCCL_SOCKET_IFNAME=listed)
    assert "interface" not in found


def test_an_adapter_that_does_not_exist_is_told():
    status, found = doctor(PYNCCL_BACKEND="nccl", NCCL_IB_HCA="=mlx9_7:1")
    assert status == 1
    assert "selects no InfiniBand adapter" in found["adapter"]


def test_a_low_limit_of_locked_memory_is_a_warning():
    def limit():
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))

    _, found = doctor(PYNCCL_BACKEND="nccl", before=limit)
    assert "64 KiB" in found["locked memory"]


def test_few_files_are_a_warning():
    def limit():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))

    status, found = doctor(before=limit)
    assert status == 0
    assert "100 files" in found["files"]


def test_little_shared_memory_is_told():
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec \"$@\""
    prefix = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs unshare with user namespaces, or root")
    status, found = doctor(PYNCCL_BACKEND="nccl", prefix=prefix)
    assert status == 1
    assert "/dev/shm has 64 MiB free of 64 MiB" in found["shared memory"]


def test_an_entry_of_the_visible_devices_that_does_not_exist_is_told():
    status, found = doctor(CUDA_VISIBLE_DEVICES="1,77,2")
    assert status == 1
    assert "lists 3 GPUs, and 1 are seen: '77' does not exist" in found["visible GPUs"]


def test_a_missing_compiler_is_told():
    status, found = doctor(CXX="/nowhere/c++")
    assert status == 1
    assert "/nowhere/c++" in found["compiler"]


def test_a_cache_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    status, found = doctor(XDG_CACHE_HOME=tmp_path / "file")
    assert status == 1
    assert str(tmp_path / "file") in found["cache"]


def test_a_trace_folder_that_cannot_be_written_is_told():
    status, found = doctor(PYNCCL_TRACE="/proc/trace/of/mine")
    assert status == 1
    assert "/proc/trace/of/mine" in found["trace"]


def test_a_machine_without_mpi_is_told():
    status, found = doctor(MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert status == 1
    assert "mpi4py cannot load an MPI" in found["MPI"]


def test_several_mpis_in_one_environment_are_told(tmp_path):
    write_distribution(tmp_path, "mpich", "5.0.2")
    write_distribution(tmp_path, "impi-rt", "2021.18.1")
    status, found = doctor(PYTHONPATH=tmp_path)
    assert status == 1
    assert "mpich, impi-rt" in found["several MPIs"]


def mpi_is_open_mpi():
    from mpi4py import MPI

    return "Open MPI" in MPI.Get_library_version()


def test_an_mpirun_of_another_mpi_on_the_path_is_told(tmp_path):
    words = "HYDRA build details:" if mpi_is_open_mpi() else "mpirun (Open MPI) 5.0.11"
    other = tmp_path / "mpirun"
    other.write_text(f"#!/bin/sh\necho '{words}'\n")
    other.chmod(0o700)
    status, found = doctor(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert status == 1
    assert f"{other} is " in found["launcher"]


def test_a_process_of_another_mpis_launcher_is_told_before_mpi_starts():
    name = "PMI_SIZE" if mpi_is_open_mpi() else "OMPI_COMM_WORLD_SIZE"
    status, found = doctor(SLURM_STEP_ID=None, **{name: "4"})
    assert status == 1
    assert "this process was started by " in found["launcher"]


# Under mpirun, where rank 0 prints one report.


def doctor_on(nranks, before="", env=None):
    """Run the command on every rank, after some source; return status and report."""
    program = (
        "import os, sys\nrank = int(os.environ.get('PMI_RANK') or os.environ['PMIX_RANK'])\n"
        f"{before}\n"
        "from pynccl.cli import main\nsys.exit(main(['doctor']))"
    )
    done = mpirun(nranks, "-c", program, env=env)
    return done.returncode, done.stdout


def test_ranks_that_are_right_print_one_report():
    status, told = doctor_on(3)
    assert told == "0 problems, 0 warnings: emulator backend, 3 processes on 1 host\n"
    assert status == 0


def test_more_ranks_than_gpus_are_told():
    status, told = doctor_on(3, env={"PYNCCL_EMULATOR_DEVICES": "2"})
    assert status != 0
    assert f"PROBLEM: ranks: rank 2 on {socket.gethostname()}: " in told
    assert "2 GPUs are visible" in told
    assert told.count("remedy:") == 1


def test_ranks_on_one_gpu_are_told():
    status, told = doctor_on(2, env={"CUDA_VISIBLE_DEVICES": "1"})
    assert status != 0
    assert "PROBLEM: ranks: ranks 0, 1 on " in told


def test_a_problem_of_one_rank_names_it():
    before = "if rank == 1: os.environ['CXX'] = '/nowhere/c++'"
    status, told = doctor_on(3, before)
    assert status != 0
    assert "PROBLEM: compiler: " in told
    assert f"[rank 1 ({socket.gethostname()})]" in told


def test_releases_that_differ_between_ranks_are_told():
    before = "if rank == 1: os.environ['PYNCCL_EMULATOR_NCCL_VERSION'] = '2.28.3'"
    status, told = doctor_on(2, before)
    assert status != 0
    assert "PROBLEM: same release: the ranks differ in NCCL: " in told


def test_backends_that_differ_between_ranks_are_told():
    before = "if rank == 1: os.environ['PYNCCL_BACKEND'] = 'nccl'"
    status, told = doctor_on(2, before)
    assert status != 0
    assert "the ranks differ in backend: emulator on rank 0" in told


def test_variables_that_differ_between_ranks_are_a_warning():
    before = "if rank == 1: os.environ['NCCL_ALGO'] = 'Ring'"
    status, told = doctor_on(2, before)
    assert status == 0
    assert "warning: environment: the ranks differ in NCCL_ALGO: unset on rank 0" in told
    assert "Ring on rank 1" in told


def test_a_launch_without_mpi4py_is_a_warning():
    before = "sys.modules.pop('mpi4py.run', None)"
    status, told = doctor_on(2, before)
    assert status == 0
    assert "warning: launch: started without -m mpi4py" in told
