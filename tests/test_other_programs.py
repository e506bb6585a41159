"""Programs that know nothing of pynccl, on the emulator; and what the documents say of it."""

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest
from helpers.launch import REPOSITORY
from helpers.processes import python

import pynccl

PROGRAM = pathlib.Path(__file__).parent / "programs/with_nccl4py.py"


def test_nccl4py_runs_unchanged():
    try:
        importlib.metadata.version("nccl4py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs nccl4py, NVIDIA's own binding: pip install nccl4py")
    done = subprocess.run(
        [sys.executable, "-m", "pynccl", "emulator", "run", PROGRAM, "one", "two"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "ran with arguments ['one', 'two']" in done.stdout


def test_a_program_that_does_not_exist_is_said_so():
    done = subprocess.run(
        [sys.executable, "-m", "pynccl", "emulator", "run", "nothing.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "there is no program nothing.py" in done.stderr


def test_code_written_for_nccl_core_finds_its_names():
    names = """
        NcclDataType NcclRedOp NcclHostCftMode NcclNvlsHostMode NcclCommMemStat
        NcclInvalid INT8 CHAR UINT8 INT32 INT UINT32 INT64 UINT64 FLOAT16 HALF FLOAT32
        FLOAT FLOAT64 DOUBLE BFLOAT16 FLOAT8E4M3 FLOAT8E5M2 SUM PROD MAX MIN AVG
        CTAPolicy CommShrinkFlag CommSuspendFlag WindowFlag NCCLConfig NCCLCollConfig
        WaitSignalDesc Communicator RegisteredBufferHandle CustomRedOp
        RegisteredWindowHandle group group_start group_end GroupSimInfo get_version
        UniqueId get_unique_id get_error_string mem_alloc mem_free params dump_params
    """
    missing = [name for name in names.split() if not hasattr(pynccl, name)]
    assert missing == []


def test_the_table_of_functions_is_that_of_the_code():
    made = subprocess.run(
        [sys.executable, REPOSITORY / "scripts/function_table"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert (REPOSITORY / "docs/functions.md").read_text() == made


def test_parameters_are_read_as_text_numbers_and_bytes():
    program = """
import pynccl
assert len(pynccl.params) == 7 and "NCCL_DEBUG" in pynccl.params
assert pynccl.params["NCCL_DEBUG_LEVELS"] == "WARN,INFO"
assert pynccl.get_param("NCCL_DEBUG_LEVELS") == 0b1100
assert pynccl.get_param("NCCL_DEBUG_SUBSYS") == 0x1081
assert pynccl.get_param("NCCL_DEBUG_FILE") == ""
assert pynccl.get_param_bytes("NCCL_DEBUG_SUBSYS") == bytes([0x81, 0x10, 0, 0, 0, 0, 0, 0])
for call in (pynccl.params.__getitem__, pynccl.get_param, pynccl.get_param_bytes):
    try:
        call("NCCL_NOTHING")
    except KeyError:
        continue
    raise AssertionError(call)
pynccl.set_encryption(pynccl.EncryptionMode.PSK, "secret")
pynccl.set_encryption(pynccl.EncryptionMode.NONE)
pynccl.bindings.ncclResetDebugInit()
pynccl.dump_params()
"""
    printed = python(program, NCCL_DEBUG_LEVELS="WARN,INFO").stdout
    assert "NCCL_DEBUG_LEVELS=WARN,INFO" in printed


def test_the_emulators_parameters_are_those_of_the_real_library():
    from test_library_search import REAL

    if not REAL.exists():
        pytest.skip("needs the wheel nvidia-nccl-cu13, which holds libnccl")
    program = """
import pynccl
print(sorted((key, pynccl.params[key], pynccl.get_param(key), pynccl.get_param_bytes(key))
             for key in pynccl.params))
"""
    real = python(program, PYNCCL_BACKEND="nccl").stdout
    assert python(program, PYNCCL_BACKEND="emulator").stdout == real
