"""The flight recorder: what it keeps of a communicator's operations, and what it tells of them."""

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import pynccl
from pynccl import call_site, errors, recorder


@pytest.fixture
def comm():
    (made,) = pynccl.Communicator.init_all(1)
    with made:
        yield made


def last(comm, number=1):
    return comm._log.operations()[-number:]


def here(offset=0):
    """Name a line relative to the caller's."""
    frame = sys._getframe(1)
    return call_site.find(frame).text.rpartition(":")[0] + f":{frame.f_lineno + offset}"


def test_operation_has_its_arguments_and_its_line(comm):
    array = comm.asarray(np.ones(3, "float64"))
    comm.reduce(array, op=pynccl.MAX, root=0)
    line = here(-1)
    (operation,) = last(comm)
    assert operation.function == "ncclReduce"
    assert operation.elements == 3 and operation.dtype == "float64" and operation.nbytes == 24
    assert operation.op == "max" and operation.root == 0 and operation.peer is None
    assert operation.site == line and line.startswith("tests/test_recorder.py:")
    assert operation.call == "ncclReduce(3 float64, max, root 0)"


def test_calls_through_the_package_are_named_by_the_users_line(comm):
    array = comm.asarray(np.ones(3, "float32"))
    comm.reduce(array, root=None)  # an all-reduce, called by reduce
    assert last(comm)[0].site == here(-1)
    comm.sendrecv(array, 0, comm.empty(3), 0)
    assert [operation.site for operation in last(comm, 2)] == [here(-1)] * 2


def test_two_calls_of_one_line_in_a_loop_have_one_site(comm):
    array = comm.asarray(np.ones(3, "float32"))
    for _ in range(3):
        comm.allreduce(array)
    assert len({operation.site for operation in last(comm, 3)}) == 1


def test_prepared_operation_is_named_by_the_line_of_prepare(comm):
    operation = comm.prepare("allgather", comm.empty(2), comm.empty(2))
    line = here(-1)
    operation()
    operation()
    assert [one.site for one in last(comm, 2)] == [line, line]
    assert [one.number for one in last(comm, 2)] == [1, 2]


def test_prepared_operation_has_a_time_between_its_neighbours(comm):
    array = comm.empty(1)
    operation = comm.prepare("allreduce", array)
    comm.allreduce(array)
    operation()
    operation()
    comm.allreduce(array)
    operation()
    first, second, third, fourth, fifth = (one.time for one in last(comm, 5))
    assert first < second < third < fourth <= fifth


def test_collectives_and_messages_are_counted_apart(comm):
    array = comm.asarray(np.ones(3, "float32"))
    comm.allreduce(array)
    comm.sendrecv(array, 0, comm.empty(3), 0)
    comm.broadcast(array)
    kinds = [(one.kind, one.ordinal, one.number) for one in last(comm, 4)]
    assert kinds == [
        ("collective", 1, 1),
        ("message", 1, 2),
        ("message", 1, 3),
        ("collective", 2, 4),
    ]


def test_call_that_is_refused_is_not_counted(comm):
    array = comm.empty(3)
    comm.allreduce(array)
    far = (array.ptr, 1 << 30, "float32")  # reaches beyond the allocation
    with pytest.raises(pynccl.NCCLInvalidArgument):
        comm.allreduce(far)
    with pytest.raises(pynccl.NCCLInvalidArgument):
        comm.send(far, 0)
    comm.broadcast(array)
    kinds = [(one.kind, one.ordinal, one.state == "refused") for one in last(comm, 4)]
    assert kinds == [
        ("collective", 1, False),
        ("refused", 0, True),
        ("refused", 0, True),
        ("collective", 2, False),
    ]
    assert comm._log.collectives == 2 and set(comm._log.peers.values()) == {0}
    given, done = comm._log.progress()
    while done < given:
        given, done = comm._log.progress()
    assert last(comm)[0].state == "completed"


def test_operations_of_one_group_have_its_number(comm):
    array = comm.asarray(np.ones(3, "float32"))
    comm.allreduce(array)
    with pynccl.group():
        comm.allreduce(array)
        with pynccl.group():
            comm.allreduce(array)
    with pynccl.group():
        comm.allreduce(array)
    alone, first, second, other = (one.group for one in last(comm, 4))
    assert alone == 0 and first == second > 0 and other > first
    assert not recorder.open_groups


def test_group_that_fails_is_over_for_the_recorder_too(comm):
    with pytest.raises(KeyError):
        with pynccl.group():
            raise KeyError
    assert not recorder.open_groups


def test_what_was_synchronized_is_completed(comm):
    array = comm.asarray(np.ones(3, "float32"))
    comm.allreduce(array)
    comm.synchronize()
    comm.allreduce(array)
    done, _ = last(comm, 2)
    assert done.state == "completed" and done.known >= done.time


def test_ring_keeps_the_last_operations_and_their_numbers(monkeypatch):
    monkeypatch.setenv("PYNCCL_TRACE_SIZE", "4")
    (comm,) = pynccl.Communicator.init_all(1)
    with comm:
        array = comm.empty(1)
        comm.sendrecv(array, 0, comm.empty(1), 0)
        for _ in range(6):
            comm.allreduce(array)
        assert [one.number for one in comm._log.operations()] == [5, 6, 7, 8]
        assert [one.ordinal for one in comm._log.operations()] == [3, 4, 5, 6]


def test_size_of_zero_keeps_nothing(monkeypatch):
    monkeypatch.setenv("PYNCCL_TRACE_SIZE", "0")
    (comm,) = pynccl.Communicator.init_all(1)
    with comm:
        comm.allreduce(comm.empty(1))
        assert comm._log.operations() == [] and recorder.report(comm._log) == ""


def test_size_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("PYNCCL_TRACE_SIZE", "many")
    with pytest.raises(ValueError, match=r"PYNCCL_TRACE_SIZE is 'many'; it must be"):
        pynccl.Communicator.init_all(1)


def test_record_keeps_no_array_alive(comm):
    array = comm.empty(5)
    kept = weakref.ref(array)
    comm.allreduce(array)
    comm.synchronize()
    del array
    gc.collect()
    assert kept() is None


def test_threads_record_in_their_own_groups():
    comms = pynccl.Communicator.init_all(2)

    def work(comm):
        array = comm.empty(1)  # kept until the group has ended
        with pynccl.group():
            comm.allreduce(array)

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one, other = (last(comm)[0].group for comm in comms)
    assert one and other and one != other
    with pynccl.group():
        for comm in comms:
            comm.synchronize()
    for comm in comms:
        comm.abort()


def test_timeout_carries_the_report(comm):
    error = errors.NCCLTimeout(2, "synchronize", "late", report="last operations: none")
    assert str(error).endswith("late\nlast operations: none")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.report == error.report


def test_communicators_that_ended_are_remembered_a_while():
    (comm,) = pynccl.Communicator.init_all(1)
    comm.allreduce(comm.empty(1))
    comm.destroy()
    assert comm._log in recorder.logs() and comm._log.state == "destroyed"
    for _ in range(recorder.ENDED):
        (other,) = pynccl.Communicator.init_all(1)
        other.allreduce(other.empty(1))
        other.abort()
    assert comm._log not in recorder.logs()


def test_dump_without_a_folder_says_so(monkeypatch):
    monkeypatch.delenv("PYNCCL_TRACE", raising=False)
    with pytest.raises(ValueError, match="name a folder"):
        recorder.dump()


PROGRAM = """
import os, signal, subprocess, sys, time
import pynccl
{before}
(comm,) = pynccl.Communicator.init_all(1)
comm.allreduce(comm.empty(3))
comm.synchronize()
{after}
"""


def ends(tmp_path, after, before=""):
    """Run a program with PYNCCL_TRACE; return its status and the reasons in its record."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, after=after)],
        env={**os.environ, "PYNCCL_TRACE": str(tmp_path / "trace")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    reasons = [
        [one["reason"] for one in json.loads(path.read_text())["reasons"]]
        for path in (tmp_path / "trace").glob("*.json")
    ]
    return done.returncode, reasons, done.stdout + done.stderr


def test_record_is_left_at_exit(tmp_path):
    assert ends(tmp_path, "comm.destroy()")[:2] == (0, [["exit"]])


def test_exception_that_ends_the_program_is_the_reason(tmp_path):
    status, reasons, _ = ends(tmp_path, "1 / 0")
    assert status == 1 and reasons == [["exit after ZeroDivisionError"]]


def test_abort_leaves_the_record(tmp_path):
    status, reasons, _ = ends(tmp_path, "comm.abort(); os._exit(3)")
    assert status == 3 and len(reasons) == 1 and reasons[0][0].startswith("abort of rank 0 of 1")


BLOCKS = "import ctypes; ctypes.CDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGABRT"])
@pytest.mark.parametrize("waits", ["time.sleep(20)", BLOCKS], ids=["Python", "C"])
def test_signal_ends_the_process_as_before_and_leaves_the_record(tmp_path, name, waits):
    kill = f"subprocess.Popen(['sh', '-c', 'sleep 0.3; kill -{name[3:]} ' + str(os.getpid())])"
    start = time.monotonic()
    status, reasons, _ = ends(tmp_path, f"{kill}\n{waits}")
    assert status == -getattr(signal, name) and reasons == [[name]]
    assert time.monotonic() - start < 15


def test_handler_of_the_users_is_left_alone(tmp_path):
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    status, reasons, _ = ends(tmp_path, "os.kill(os.getpid(), signal.SIGTERM)", before)
    assert status == 7 and reasons == [["exit"]]


def test_signal_to_a_forked_child_is_the_childs_alone(tmp_path):
    after = """
child = os.fork()
if child == 0:
    time.sleep(20)
    os._exit(0)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
time.sleep(0.3)
comm.abort()
os._exit(5)
"""
    status, reasons, _ = ends(tmp_path, after)
    assert status == 5 and len(reasons) == 1 and reasons[0][0].startswith("abort")


def test_folder_that_cannot_be_written_is_told_and_nothing_else(tmp_path):
    (tmp_path / "trace").write_text("a file, and no folder")
    status, reasons, printed = ends(tmp_path, "comm.destroy()")
    assert status == 0 and reasons == []
    assert f"could not be written to PYNCCL_TRACE={tmp_path / 'trace'}: FileExistsError" in printed


def test_ctrl_c_ends_a_wait_at_once(tmp_path):
    after = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs behind
first, second = pynccl.Communicator.init_all(2)
first.allreduce(first.empty(3))
subprocess.Popen(["sh", "-c", "sleep 0.5; kill -INT " + str(os.getpid())])
start = time.monotonic()
try:
    first.synchronize(timeout=1.9)  # no longer, or the emulator tells of a deadlock
except KeyboardInterrupt:
    print("after", time.monotonic() - start)
first.abort()
second.abort()
comm.abort()
"""
    status, _, printed = ends(tmp_path, after)
    assert status == 0 and 0.3 < float(printed.split()[1]) < 1.8, printed
