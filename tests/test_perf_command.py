"""python -m pynccl perf: its numbers, its checks and its files."""

import argparse
import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.launch import REPOSITORY, mpirun

import pynccl.perf.measure
from pynccl import types
from pynccl.cli import main
from pynccl.perf import options as command_line
from pynccl.perf.operations import OPERATIONS
from pynccl.perf.patterns import Pattern
from pynccl.streams import check_driver


def perf(*arguments, env=None):
    """Run the command in one process; return status, table rows as words, and all lines."""
    done = subprocess.run(
        [sys.executable, "-m", "pynccl", "perf", *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, rows(done.stdout), done.stdout.splitlines() + done.stderr.splitlines()


def in_process(line):
    """Run the command here; return the status."""
    return main(["perf", *line.split()])


def rows(output):
    return [line.split() for line in output.splitlines() if line and not line.startswith("#")]


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    command_line.add_arguments(parser)
    return parser.parse_args(arguments)


def test_table_has_the_columns_of_nccl_tests():
    status, table, lines = perf("all_reduce", "-g", 2, "-b", 8, "-e", 2048, "-f", 16, "-n", 2)
    assert status == 0
    assert [words[:2] for words in table] == [["8", "2"], ["128", "32"], ["2048", "512"]]
    assert all(words[2:5] == ["float", "sum", "-1"] for words in table)
    assert all(len(words) == 13 and words[8] == words[12] == "0" for words in table)
    head = next(line for line in lines if "size" in line and "count" in line)
    assert head.split()[1:] == [
        *("size", "count", "type", "redop", "root"),
        *(("time", "algbw", "busbw", "#wrong") * 2),
    ]
    assert any(line.startswith("# Out of bounds values : 0 OK") for line in lines)
    assert any(line.startswith("# Avg bus bandwidth    : ") for line in lines)
    assert sum(line.startswith("#  Rank ") for line in lines) == 2


@pytest.mark.parametrize(
    ("operation", "nranks", "size", "count", "algbw", "busbw"),
    # Of 4096 bytes in float32, that is 1024 elements, in one microsecond; by hand.
    [
        ("all_reduce", 4, 4096, 1024, 4.096, 4.096 * 1.5),
        ("all_gather", 4, 4096, 256, 4.096, 3.072),
        ("reduce_scatter", 4, 4096, 256, 4.096, 3.072),
        ("broadcast", 4, 4096, 1024, 4.096, 4.096),
        ("reduce", 4, 4096, 1024, 4.096, 4.096),
        ("alltoall", 4, 4096, 256, 4.096, 3.072),
        ("gather", 4, 4096, 256, 4.096, 3.072),
        ("scatter", 4, 4096, 256, 4.096, 3.072),
        ("sendrecv", 4, 4096, 1024, 4.096, 4.096),
        ("hypercube", 4, 4096, 256, 3.072, 3.072),
        # To ranks 0 to 3 steps on: 0, 682, 1365, 2048 bytes, in multiples of 16.
        ("alltoallv", 4, 4080, 256, 4.080, 3.060),
        # 341 elements each would end within 16 bytes; so 340.
        ("all_gather", 3, 4080, 340, 4.080, 2.720),
    ],
)
def test_bandwidth_is_reckoned_as_nccl_tests_does(operation, nranks, size, count, algbw, busbw):
    shape = OPERATIONS[operation].shape(1024, 4, nranks)
    assert max(shape.send, shape.recv) * 4 == size
    assert shape.count == count
    assert OPERATIONS[operation].bandwidth(shape, 4, nranks, 1e-6) == pytest.approx((algbw, busbw))


def test_reported_bandwidth_follows_from_the_reported_time(tmp_path):
    file = tmp_path / "run.json"
    status, _, _ = perf(
        "all_reduce", "-g", 4, "-b", "64K", "-e", "64K", "-n", 3, "--json", file
    )
    assert status == 0
    record = json.loads(file.read_text())
    for way in ("out_of_place", "in_place"):
        numbers = record["results"][0][way]
        assert numbers["alg_bw"] == pytest.approx(65536 / 1e3 / numbers["time"])
        assert numbers["bus_bw"] == pytest.approx(numbers["alg_bw"] * 1.5)
        assert numbers["nwrong"] == 0
    busbw = [record["results"][0][way]["bus_bw"] for way in ("out_of_place", "in_place")]
    assert record["average_bus_bandwidth"]["bandwidth"] == pytest.approx(sum(busbw) / 2)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("name", ["int8", "bfloat16", "double"])
def test_every_operation_is_right_for_all_reductions_and_roots(operation, name, capsys):
    options = f"-g 4 -b 256 -e 4K -f 16 -n 2 -w 0 -d {name} -o all -r all"
    assert in_process(f"{operation} {options}") == 0
    table = rows(capsys.readouterr().out)
    known = OPERATIONS[operation]
    assert len(table) == 2 * (6 if known.reduces else 1) * (4 if known.rooted else 1)
    for words in table:
        assert words[2] == name
        assert words[8] == "0"
        assert words[12] == ("0" if known.in_place else "N/A")


def test_two_processes_measure_together():
    done = mpirun(
        2, "-m", "pynccl", "perf", "all_reduce", "-b", 64, "-e", "64K", "-f", 32, "-n", 2, "-d",
        "half", "-a", 3,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [words[:3] for words in rows(done.stdout)] == [
        ["64", "32", "half"],
        ["2048", "1024", "half"],
        ["65536", "32768", "half"],
    ]
    assert done.stdout.count("#  Rank ") == 2
    assert done.stdout.count("Out of bounds values : 0 OK") == 1


def test_processes_with_two_gpus_each_are_one_group_or_several():
    arguments = ("-m", "pynccl", "perf", "all_gather", "-g", 2, "-b", "4K", "-e", "4K", "-n", 2)
    done = mpirun(2, *arguments)
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout)[0][:2] == ["4096", "256"]
    done = mpirun(2, *arguments, env={"NCCL_TESTS_SPLIT": "MOD 2"})
    assert done.returncode == 0, done.stderr
    assert rows(done.stdout)[0][:2] == ["4096", "512"]
    assert "Rank  1 Group  1" in done.stdout


def corrupting(call):
    """Return an issue that damages a byte of the first rank's memory after the operation."""

    def issue(ranks):
        from cuda.bindings import driver

        call(ranks)
        bound = ranks[0][-1][-1]  # ncclAllReduce, with its arguments
        check_driver(driver.cuStreamSynchronize(bound.args[-1]), "wait")
        check_driver(driver.cuMemsetD8(bound.args[1] + 2, 0xA5, 1), "damage")
        check_driver(driver.cuCtxSynchronize(), "wait for the damage")

    return issue


def test_wrong_data_is_counted_and_fails_the_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pynccl.perf.measure, "issue", corrupting(pynccl.perf.measure.issue))
    file = tmp_path / "run.json"
    assert in_process(f"all_reduce -g 2 -b 64 -e 64 -n 1 -d int32 --json {file}") == 1
    output = capsys.readouterr().out
    table = rows(output)
    assert [words[8] for words in table] == ["1"]
    assert [words[12] for words in table] == ["1"]
    assert "# Out of bounds values : 2 FAILED" in output
    assert json.loads(file.read_text())["out_of_bounds"] == {"count": 2, "okay": False}


def test_unchecked_results_are_said_to_be(monkeypatch, capsys):
    monkeypatch.setattr(pynccl.perf.measure, "issue", corrupting(pynccl.perf.measure.issue))
    assert in_process("all_reduce -g 2 -b 64 -e 64 -n 1 -c 0") == 0
    assert [words[8] for words in rows(capsys.readouterr().out)] == ["N/A"]


@pytest.mark.parametrize("options", ["-G 3", "-G 2 -m 2", "-m 4", "-z 1", "-z 2", "-z 3", "-y 1"])
def test_ways_of_issuing_give_right_results(options, capsys):
    assert in_process(f"reduce_scatter -g 3 -b 4K -e 4K -n 3 {options}") == 0
    assert rows(capsys.readouterr().out)[0][8] == "0"


@pytest.mark.parametrize("options", ["-R 1", "-R 2", "-u 3", "-x 1", "-C 1", "-N 2", "-p 1"])
def test_options_of_nccl_tests_are_taken(options, capsys):
    assert in_process(f"all_reduce -g 2 -b 4K -e 4K -n 2 {options}") == 0
    table = rows(capsys.readouterr().out)
    assert len(table) == (2 if options == "-N 2" else 1)
    assert all(row[8] == "0" for row in table)


def test_each_iteration_is_timed_where_asked_for(tmp_path):
    file = tmp_path / "run.json"
    status, table, lines = perf(
        "broadcast", "-g", 2, "-b", 64, "-e", 64, "-n", 5, "-I", 1, "-K", 2, "-J", file
    )
    assert status == 0, lines
    assert len(table[0]) == 5 + 2 * 8
    numbers = json.loads(file.read_text())["results"][0]["in_place_per_iter"]
    assert len(numbers["times_us"]) == 5
    kept = sorted(numbers["times_us"][2:])
    assert [numbers[key] for key in ("min_us", "p50_us", "max_us")] == kept
    assert numbers["avg_us"] == pytest.approx(np.mean(kept))
    assert numbers["stdev_us"] == pytest.approx(np.std(kept))


def test_csv_has_a_row_for_each_measurement(tmp_path):
    file = tmp_path / "run.csv"
    sizes = ("-b", 64, "-e", 128, "-f", 2)
    status, table, _ = perf("scatter", "-g", 2, *sizes, "-n", 2, "--csv", file)
    assert status == 0
    written = list(csv.DictReader(file.open()))
    assert [(row["size"], row["in_place"]) for row in written] == [
        ("64", "0"),
        ("64", "1"),
        ("128", "0"),
        ("128", "1"),
    ]
    assert all(row["operation"] == "scatter" and row["ranks"] == "2" for row in written)
    assert float(written[0]["time_us"]) == pytest.approx(float(table[0][5]), abs=0.006)
    assert all(row["wrong"] == "0" for row in written)


def test_plot_overlays_earlier_runs(tmp_path):
    pytest.importorskip("matplotlib")
    earlier, image = tmp_path / "earlier.json", tmp_path / "plot.svg"
    size = ("-g", 2, "-b", 64, "-e", 256, "-f", 2, "-n", 2)
    assert perf("all_reduce", *size, "--json", earlier)[0] == 0
    assert perf("all_gather", *size, "--plot", image, "--with", earlier)[0] == 0
    drawn = image.read_text()
    assert drawn.count("all_reduce float sum, 2 ranks") == 2
    assert drawn.count("all_gather float, 2 ranks") == 2


def test_too_little_bandwidth_fails_the_run():
    size = ("-g", 2, "-b", 64, "-e", 64, "-n", 2)
    status, _, lines = perf("all_reduce", *size, env={"NCCL_TESTS_MIN_BW": "1e6"})
    assert status == 1
    assert any("Avg bus bandwidth" in line and line.endswith("FAILED") for line in lines)
    assert perf("all_reduce", *size, env={"NCCL_TESTS_MIN_BW": "1e-9"})[0] == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("all_reduce -g 99", "visible"),
        ("broadcast -g 2 -r 2", "-r 2: must be a rank from 0 to 1"),
        ("hypercube -g 3", "power of two"),
        ("all_reduce -I 1 -G 1", "-I and -G"),
        ("all_reduce -b 12Q", "'12Q' is no size"),
        ("all_reduce -d quaternion", "'quaternion' is none of"),
        ("all_together", "invalid choice"),
    ],
)
def test_what_cannot_be_measured_is_told_with_status_two(arguments, reason):
    status, table, lines = perf(*arguments.split())
    assert status == 2
    assert table == [] or reason in " ".join(table[-1])
    assert any(reason in line for line in lines)


def test_a_failure_on_one_rank_ends_the_job():
    arguments = ("-m", "pynccl", "perf", "all_reduce", "-g", 2)
    done = mpirun(2, *arguments, env={"PYNCCL_EMULATOR_DEVICES": "3"})
    assert done.returncode != 0
    assert "process 1" in done.stderr
    assert "GPUs 2 to 3, and 3 are visible" in done.stderr


def test_spellings_of_nccl_tests_are_understood():
    options = parsed(
        "all_reduce", "--minbytes", "1.5K", "-e", "2m", "--stepfactor", "0x2", "-d", "half",
        "--op", "all", "-r", "all", "--datatype=float32", "-n5", "-c", "0", "-J", "x.json",
    )  # fmt: skip
    assert (options.minbytes, options.maxbytes, options.stepfactor) == (1536, 2 << 20, 2)
    assert options.datatype == ("float",)
    assert options.op == command_line.REDUCTIONS
    assert (options.root, options.iters, options.check, options.json) == (None, 5, 0, "x.json")


@pytest.mark.parametrize("datatype", list(types.DataType))
@pytest.mark.parametrize("nranks", [1, 2, 3, 8, 64])
def test_reduced_contents_are_exact_in_any_order(datatype, nranks):
    shape = OPERATIONS["all_reduce"].shape(70000, datatype.itemsize, nranks)
    for reduction, reduce in (("sum", np.add), ("prod", np.multiply)):
        pattern = Pattern("all_reduce", reduction, datatype, nranks, 0, seed=1)
        total = pattern.sent(nranks - 1, shape.send)
        for rank in reversed(range(nranks - 1)):
            total = reduce(total, pattern.sent(rank, shape.send)).astype(total.dtype)
        expected = pattern.received(0, shape)
        assert pattern.wrong(total, expected) == 0
        assert len(np.unique(expected.astype(float))) > 1
        assert pattern.wrong(np.roll(total, 1), expected) > 0
