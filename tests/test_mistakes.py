"""Mistakes that NCCL answers with a hang or a crash are errors here, on every rank concerned."""

import json
import re

import pytest
from helpers.launch import mpirun
from helpers.processes import python

PROGRAM = "tests/programs/mistakes.py"
DIFFER = r"the ranks differ in operation 1: "
EVERYONE, OTHERS = "everyone", "others"

# Name, the exception, its text, and the ranks that raise it. AT stands for a place in the program.
AT = r"tests/programs/mistakes\.py:\d+"
WAITS = r"none can go on: .*rank \d \(process \d+\) waits on communicator \w+ in"
MISTAKES = [
    (
        "other_operation",
        "NCCLInvalidUsage",
        rf"{DIFFER}rank 1, 2: all-reduce of 4 float32, sum at {AT}; "
        rf"rank 0: broadcast of 4 float32, root 0 at {AT}; all ranks must issue the same",
        EVERYONE,
    ),
    (
        "other_count",
        "NCCLInvalidUsage",
        rf"{DIFFER}rank 0: all-reduce of 4 float32, sum at {AT}; rank 1: all-reduce of 5 .*"
        r"rank 2: all-reduce of 6 ",
        EVERYONE,
    ),
    (
        "other_type",
        "NCCLInvalidUsage",
        rf"{DIFFER}rank 0: all-reduce of 4 float32, sum at {AT}; rank 1, 2: all-reduce of 4 int32",
        EVERYONE,
    ),
    (
        "other_reduction",
        "NCCLInvalidUsage",
        rf"rank 1, 2: all-reduce of 4 float32, max at {AT}; rank 0: all-reduce of 4 float32, sum",
        EVERYONE,
    ),
    (
        "other_root",
        "NCCLInvalidUsage",
        rf"{DIFFER}rank 0: broadcast of 4 float32, root 0 at {AT}; rank 1, 2: broadcast of 4 "
        r"float32, root 1",
        EVERYONE,
    ),
    (
        "other_message_size",
        "NCCLInvalidUsage",
        rf"message 1 from rank 0 to rank 1: rank 0 sends 4 float32 to rank 1 at {AT}, which "
        rf"receives 5 float32 at {AT}: both sides must name the same count and type",
        (0, 1),
    ),
    (
        "other_message_type",
        "NCCLInvalidUsage",
        rf"message 1 from rank 0 to rank 1: rank 0 sends 4 float32 to rank 1 at {AT}, which "
        rf"receives 2 float64 at {AT}: both sides must name the same count and type",
        (0, 1),
    ),
    (
        "other_type_of_the_same_size",
        "NCCLInvalidUsage",
        rf"{DIFFER}rank 0: broadcast of 2 float64, root 0 at {AT}; rank 1, 2: broadcast of 4 "
        rf"float32, root 0 at {AT}",
        EVERYONE,
    ),
    (
        "send_without_receive",
        "NCCLInvalidUsage",
        rf"{WAITS} message 1 \(send of 4 float32 to rank 1\) at {AT}, for rank 1[;.]",
        EVERYONE,
    ),
    (
        "receive_without_send",
        "NCCLInvalidUsage",
        rf"{WAITS} message 1 \(receive of 4 float32 from rank 1\) at {AT}, for rank 1[;.].* Each "
        r"receive needs its send",
        EVERYONE,
    ),
    (
        "second_receive_without_send",
        "NCCLInvalidUsage",
        rf"{WAITS} message 2 \(receive of 4 float32 from rank 1\) at {AT}, for rank 1[;.]",
        EVERYONE,
    ),
    (
        "signal_never_sent",
        "NCCLInvalidUsage",
        rf"{WAITS} wait for 1 signal of rank 1, of which 0 came at {AT}, for rank 1[;.].* each "
        r"wait for signals as many signals",
        EVERYONE,
    ),
    (
        "too_few_signals",
        "NCCLInvalidUsage",
        rf"{WAITS} wait for 2 signals of rank 1, of which 1 came at {AT}, for rank 1[;.]",
        EVERYONE,
    ),
    (
        "split_against_a_collective",
        "NCCLInvalidUsage",
        rf"{WAITS} agreement 1 \(split of color 0, key 7\) at {AT}, for rank 1[;.].* the same "
        r"collectives",
        EVERYONE,
    ),
    (
        "split_against_a_window",
        "NCCLInvalidUsage",
        rf"the ranks differ in agreement 1: rank 1, 2: registration of a window of 4096 bytes at "
        rf"{AT}; rank 0: split without a color at {AT}; all ranks must issue the same",
        EVERYONE,
    ),
    (
        "unfused_exchange",
        "NCCLInvalidUsage",
        rf"the ranks wait for each other, and none can go on: rank \d \(process \d+\) waits on "
        rf"communicator \w+ in message 1 \(send of 4 float32 to rank \d\) at {AT}, for rank \d; "
        r".*one group",
        EVERYONE,
    ),
    (
        "opposite_order",
        "NCCLInvalidUsage",
        rf"none can go on: .*\(all-reduce of 4 float32, sum\) at {AT}, for rank \d; .*same order",
        EVERYONE,
    ),
    (
        "leaves_early",
        "NCCLRemoteError",
        rf"rank 0 \(process \d+\) has destroyed the communicator after 1 operation, the last: "
        rf"all-reduce of 4 float32, sum at {AT}, and rank \d waits for it in operation 2 "
        rf"\(all-reduce of 4 float32, sum\) at {AT}",
        OTHERS,
    ),
    (
        "never_comes",
        "NCCLInvalidUsage",
        rf"rank \d has waited for 3 s in operation 2 \(all-reduce of 4 float32, sum\) at {AT} for "
        rf"rank 0 \(process \d+, which lives; after 1 operation, the last: all-reduce .* at {AT}\)",
        OTHERS,
    ),
    (
        "skips_an_operation",
        "NCCLRemoteError",
        r"rank 0 \(process \d+\) has aborted the communicator after 2 operations, the last: "
        r".* waits for it in operation 3 ",
        OTHERS,
    ),
    (
        "host_memory",
        "NCCLInvalidArgument",
        r"communicator \w+, rank \d, after 1 operation: sendbuff 0x\w+ of the all-reduce of 4 "
        r"float32, sum is not GPU memory: copy what is there to GPU \d",
        EVERYONE,
    ),
    (
        "recvbuf_in_host_memory",
        "TypeError",
        r"recvbuf is a numpy.ndarray, which is in host memory; .* comm.asarray\(recvbuf\) copies",
        EVERYONE,
    ),
    (
        "recvbuf_in_host_memory_in_c",
        "NCCLInvalidArgument",
        r"recvbuff 0x\w+ of the all-reduce of 4 float32, sum is not GPU memory: copy what is there",
        EVERYONE,
    ),
    (
        "past_the_end",
        "NCCLInvalidArgument",
        rf"after 0 operations at {AT}: sendbuff of the all-reduce of 1000000 float32, sum needs "
        r"4000000 bytes, and its "
        r"allocation has \d+ from there",
        EVERYONE,
    ),
    (
        "freed_memory",
        "NCCLInvalidArgument",
        r"is GPU memory that was freed or never allocated",
        EVERYONE,
    ),
    (
        "freed_in_a_group",
        "NCCLInvalidArgument",
        rf"ncclGroupEnd: .* communicator \w+, rank \d: sendbuff 0x\w+ of the send of 4 float32 to "
        rf"rank \d at {AT} was freed before the group that holds it ended: memory must be kept",
        EVERYONE,
    ),
    (
        "freed_in_a_group_and_allocated_anew",
        "NCCLInvalidArgument",
        rf"sendbuff 0x\w+ of the all-reduce of 1000 float32, sum at {AT} was freed before",
        EVERYONE,
    ),
    (
        "overlap",
        "NCCLInvalidArgument",
        r"sendbuff and recvbuff .* overlap without being in place",
        EVERYONE,
    ),
    (
        "after_finalize",
        "NCCLInvalidUsage",
        r"communicator \w+ \(rank \d of 3\) was finalized: it takes no more operations, make a new",
        EVERYONE,
    ),
    (
        "after_destroy",
        "ValueError",
        r"the communicator was destroyed \(rank \d of 3, communicator \w+\): make a new one",
        EVERYONE,
    ),
    ("after_abort", "ValueError", r"the communicator was aborted \(rank \d of 3", EVERYONE),
    (
        "after_abort_in_c",
        "NCCLInvalidArgument",
        r"0x\w+ is not a communicator: it was communicator \w+ \(rank \d of 3\), which this "
        r"process aborted after 1 operation, the last: all-reduce of 4 float32, sum at "
        rf"{AT}; make a new one",
        EVERYONE,
    ),
    (
        "buffer_of_another_gpu_in_c",
        "NCCLInvalidArgument",
        r"recvbuff 0x\w+ of the all-reduce of 4 float32, sum lies on GPU 3, the communicator is of "
        r"GPU \d: pass memory of that one",
        EVERYONE,
    ),
    (
        "window_of_another_gpu",
        "NCCLInvalidArgument",
        r"ncclCommWindowRegister: .* 0x\w+ is not memory of GPU \d, which rank \d of communicator "
        r"\w+ is of: pass memory",
        EVERYONE,
    ),
    (
        "buffer_of_another_gpu",
        "ValueError",
        r"sendbuf is on GPU 3, the communicator on GPU \d: pass memory of that one",
        EVERYONE,
    ),
    ("mixed_group", "NCCLInvalidUsage", r"each belongs in a group of its own", EVERYONE),
    (
        "destroyed_in_a_group",
        "NCCLInvalidUsage",
        rf"ncclCommFinalize: .*rank \d would end communicator \w+, with 1 operation in a group "
        rf"that it has not ended \(the first: all-reduce of 4 float32, sum at {AT}\)",
        EVERYONE,
    ),
    (
        "destroyed_in_a_group_in_c",
        "NCCLInvalidUsage",
        r"ncclCommDestroy: .*rank \d would end communicator \w+, with 1 operation in a group",
        EVERYONE,
    ),
    (
        "aborted_in_a_group",
        "NCCLInvalidUsage",
        r"ncclGroupEnd: .*communicator \w+ \(rank \d of 3\) was aborted: make a new one",
        EVERYONE,
    ),
    ("one_gpu_for_two", "NCCLInvalidUsage", r"ranks \d .* and \d .* are both on GPU 0", EVERYONE),
    (
        "one_rank_twice",
        "NCCLInvalidUsage",
        r"rank 0 of 3 is taken twice: by process \d+ and",
        EVERYONE,
    ),
    (
        "other_number_of_ranks",
        "NCCLInvalidArgument",
        r"ranks disagree on the size of the communicator: \d and \d",
        EVERYONE,
    ),
    ("id_used_twice", "NCCLInvalidUsage", r"has already served a communicator", EVERYONE),
    (
        "group_left_open_by_a_thread",
        "NCCLInvalidUsage",
        rf"a thread of process \d+ ended inside a group, .* was never launched .*sum at {AT}\)",
        OTHERS,
    ),
]


@pytest.fixture(scope="module")
def told():
    """What each rank was told of each mistake, all of them made by one job."""
    names = [mistake[0] for mistake in MISTAKES]
    ran = mpirun(3, PROGRAM, *names, timeout=100, env={"PYNCCL_EMULATOR_PATIENCE": "3"})
    said = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {(one["name"], one["rank"]): one for one in said}


@pytest.mark.parametrize(("name", "kind", "text", "ranks"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_where_it_was_made(told, name, kind, text, ranks):
    for rank in {EVERYONE: (0, 1, 2), OTHERS: (1, 2)}.get(ranks, ranks):
        said = told[name, rank]
        assert said["kind"] == kind, said
        assert re.search(text, said["text"]), said["text"]


def test_a_group_left_open_is_told_when_its_thread_ends():
    program = (
        "import numpy, pynccl\n"
        "comm = pynccl.Communicator.init(1, 0, pynccl.get_unique_id())\n"
        "x = comm.asarray(numpy.ones(4, numpy.float32))\n"
        "pynccl.group_start()\n"
        "comm.allreduce(x)\n"
    )
    # The main thread's end is told after Python has freed what it freed: the place must be left.
    ran = python(f"exec(compile({program!r}, 'a_program_with_a_long_name.py', 'exec'))")
    assert "ended inside a group, and what it held was never launched (1 of its" in ran.stderr
    assert "first: all-reduce of 4 float32, sum at a_program_with_a_long_name.py:5)" in ran.stderr


def test_a_group_left_open_is_told_to_who_waits_inside_it_and_to_who_waits_for_it():
    ran = mpirun(3, PROGRAM, "group_left_open", timeout=60)
    assert re.search(
        rf"rank 0 \(process \d+\) waits for a stream inside a group that is not ended and holds "
        rf"all-reduce of 4 float32, sum at {AT} for it",
        ran.stderr,
    ), ran.stderr
    for rank in (1, 2):
        assert re.search(
            rf"rank {rank} waits in operation 1 \(all-reduce of 4 float32, sum\) at {AT} for "
            rf"rank 0 \(process \d+\), with 1 operation in a group that it has not ended "
            rf"\(the first: all-reduce of 4 float32, sum at {AT}\)",
            ran.stderr,
        ), ran.stderr


def test_of_two_groups_that_is_told_which_is_still_open():
    ran = mpirun(2, PROGRAM, "second_group_left_open", timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert re.search(
        rf"rank 1 waits in operation 2 .* for rank 0 \(process \d+\), with 1 operation in a group "
        rf"that it has not ended \(the first: broadcast of 4 float32, root 0 at {AT}\)",
        ran.stderr,
    ), ran.stderr


WAITS_IN_A_GROUP = """
import numpy, pynccl
from cuda.bindings import driver
from cuda.core import Device
one = pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=0)
x = one.asarray(numpy.ones(4, numpy.float32))
event, stream = driver.cuEventCreate(0)[1], driver.cuStreamCreate(0)[1]
driver.cuEventRecord(event, 0)
with pynccl.group():
    one.allreduce(x)
    WAIT
one.destroy()
"""


@pytest.mark.parametrize(
    ("wait", "what"),
    [
        ("driver.cuStreamSynchronize(0)", "a stream"),
        ("driver.cuEventRecord(event, 0); driver.cuEventSynchronize(event)", "an event"),
        ("driver.cuCtxSynchronize()", "a whole GPU"),
    ],
)
def test_a_wait_inside_a_group_for_what_it_holds_is_told(wait, what):
    ran = python(WAITS_IN_A_GROUP.replace("WAIT", wait))
    assert re.search(
        rf"communicator \w+: rank 0 \(process \d+\) waits for {what} inside a group that is not "
        r"ended and holds all-reduce of 4 float32, sum at <string>:10 for it: nothing of a group",
        ran.stderr,
    ), ran.stderr
    assert ran.stderr.count("pynccl emulator") == 1


@pytest.mark.parametrize(
    "wait",
    [
        "driver.cuEventSynchronize(event)",  # of what came before
        "driver.cuStreamSynchronize(stream)",
        "driver.cuEventRecord(event, stream); driver.cuEventSynchronize(event)",
        "Device(1).set_current(); driver.cuCtxSynchronize()",
        "driver.cuEventQuery(event)",
    ],
)
def test_a_wait_inside_a_group_for_something_else_is_no_mistake(wait):
    assert "inside a group" not in python(WAITS_IN_A_GROUP.replace("WAIT", wait)).stderr


REGISTERED = """
import numpy, pynccl
comm = pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=0)
memory = pynccl.mem_alloc(8192)
other = comm.asarray(numpy.ones(10))
registered = comm.REGISTER((int(memory.handle) + 4096, 1024, "float32"))
"""
FREE = "pynccl.mem_free(memory)"


@pytest.mark.parametrize(
    ("register", "what"),
    [("register_window", "window"), ("register_buffer", "registered buffer")],
)
def test_memory_that_is_freed_while_it_is_registered_is_told(register, what):
    program = REGISTERED.replace("REGISTER", register)
    told = python(f"{program}{FREE}\nregistered.close(); comm.destroy()").stderr
    assert re.search(
        rf"communicator \w+: rank 0 \(process \d+\) frees memory of a {what}, 4096 bytes at 0x\w+ "
        r"registered at <string>:6: deregister it before",
        told,
    ), told
    assert told.count("pynccl emulator") == 1
    for before in ("registered.close()", "del other", "comm.destroy()", "comm.abort()"):
        end = "comm.abort()" if before == "del other" else f"{FREE}; comm.abort()"
        assert python(f"{program}{before}; {end}").stderr == "", before


def test_a_communicator_left_at_exit_is_told():
    ran = python("import pynccl; comm = pynccl.Communicator.init(1, 0, pynccl.get_unique_id())")
    assert "its communicator (rank 0 of 1) was neither destroyed nor aborted" in ran.stderr
