"""A run's results as files: JSON in nccl-tests' layout, CSV, and a plot."""

from __future__ import annotations

import argparse
import csv
import json
from typing import Any

__all__ = ["read", "write"]

_COLUMNS = (
    "operation", "ranks", "size", "count", "type", "redop", "root", "in_place", "time_us",
    "algbw_GBps", "busbw_GBps", "wrong",
)


def write(record: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Write the files that the options name, and return their names.

    Raises:
        OSError: a file cannot be written
    """
    written = []
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        written.append(options.json)
    if options.csv:
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(_COLUMNS)
            table.writerows(_rows(record))
        written.append(options.csv)
    if options.plot:
        from pynccl.perf import plot

        plot.draw([record, *(read(name) for name in options.others)], options.plot)
        written.append(options.plot)
    return written


def read(name: str) -> dict[str, Any]:
    """Return the record of an earlier run.

    Raises:
        ValueError: the file is none
    """
    with open(name, encoding="utf-8") as file:
        record = json.load(file)
    if not isinstance(record, dict) or "results" not in record:
        raise ValueError(f"{name} has no results of a perf run")
    return record


def _rows(record: dict[str, Any]) -> list[list[Any]]:
    rows = []
    ranks = len(record["config"]["devices"])
    for result in record["results"]:
        for name in ("out_of_place", "in_place"):
            numbers = result[name]
            if numbers is not None:
                rows.append(
                    [
                        record["operation"], ranks,
                        *(result[key] for key in ("size", "count", "type", "redop", "root")),
                        int(name == "in_place"),
                        numbers.get("time", numbers.get("cpu_time")),
                        numbers["alg_bw"], numbers["bus_bw"], numbers["nwrong"],
                    ]
                )
    return rows
