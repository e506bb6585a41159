"""python -m pynccl info and emulator."""

import json
import os
import subprocess
import sys

import pynccl
from pynccl.types import LATEST


def command(*words, check=True, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pynccl", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=check,
        timeout=120,
    )


def test_info_tells_versions_paths_gpus_mpi_and_environment():
    facts = json.loads(command("info", "--json", PYNCCL_EMULATOR_DEVICES="3").stdout)
    assert facts["versions"]["pynccl"] == pynccl.__version__
    assert facts["libnccl"]["version"] == ".".join(map(str, LATEST))
    assert os.path.exists(facts["libnccl"]["path"])
    assert len(facts["GPUs"]) == 3
    assert facts["environment"]["PYNCCL_EMULATOR_DEVICES"] == "3"
    assert len(facts["MPI"]) == 1


def test_info_is_readable_without_an_option():
    lines = command("info").stdout.splitlines()
    assert "libnccl:" in lines
    assert "  backend: emulator" in lines


def test_info_tells_what_is_wrong_rather_than_fail():
    facts = json.loads(
        command("info", "--json", PYNCCL_BACKEND="nccl", PYNCCL_LIBRARY="/nowhere.so").stdout
    )
    assert facts["libnccl"]["error"].startswith("NCCLLibraryNotFound: NCCL: not found: ")
    assert facts["search"] == ["PYNCCL_LIBRARY: /nowhere.so: no such file"]
    without_mpi = json.loads(command("info", "--json", MPI4PY_LIBMPI="/nowhere.so").stdout)
    assert "nowhere" in without_mpi["MPI"][0] or "MPI" in without_mpi["MPI"][0]


def test_the_emulator_is_built_shown_and_removed(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert "built     False" in command("emulator", "status", **cache).stdout
    assert command("emulator", "clean", **cache).stdout == "nothing to remove\n"
    folder = command("emulator", "build", **cache).stdout.strip()
    assert folder.startswith(str(tmp_path))
    assert os.stat(folder).st_mode & 0o077 == 0
    assert "built     True" in command("emulator", "status", **cache).stdout
    assert command("emulator", "clean", **cache).stdout == f"removed {folder}\n"
    assert not os.path.exists(folder)


def test_no_compiler_is_a_clear_error(tmp_path):
    done = command(
        "emulator", "build", check=False, XDG_CACHE_HOME=str(tmp_path), CXX="no-such-compiler"
    )
    assert done.returncode == 1
    assert "needs a C++17 compiler" in done.stderr
    assert "no-such-compiler" in done.stderr
    assert "apt-get install g++" in done.stderr


def test_a_compiler_that_fails_shows_its_words(tmp_path):
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho it broke >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = command(
        "emulator", "build", check=False, XDG_CACHE_HOME=str(tmp_path), CXX=str(compiler)
    )
    assert done.returncode == 1
    assert "it broke" in done.stderr
    assert [path.name for path in (tmp_path / "pynccl").iterdir()] == ["build.lock"]


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = command("emulator", "build", check=False, XDG_CACHE_HOME=str(blocked))
    assert done.returncode == 1
    assert "set XDG_CACHE_HOME" in done.stderr


def test_processes_that_start_together_wait_for_one_build(tmp_path):
    program = "from pynccl import library; print(library.load().path)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    paths = {process.communicate(timeout=110)[0] for process in processes}
    assert len(paths) == 1
    assert [process.returncode for process in processes] == [0] * 4
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "pynccl").iterdir())
    assert names == ["build.lock", "emulator"]
