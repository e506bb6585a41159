"""Bandwidth and latency against size, for one run or several."""

from __future__ import annotations

from typing import Any

__all__ = ["draw"]


def draw(records: list[dict[str, Any]], file: str) -> None:
    """Draw the runs, a color each, into one file.

    Args:
        records: what ``--json`` writes
        file: its name's end tells the format: png, pdf, svg
    Raises:
        ImportError: matplotlib is not installed
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from error

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    bandwidth, latency = figure.subplots(1, 2)
    number = 0
    for record in records:
        for label, series in _series(record).items():
            color = f"C{number % 10}"
            number += 1
            for name, style, mark in (("out_of_place", "-", "o"), ("in_place", "--", "x")):
                _draw_series(bandwidth, latency, series, name, color, style, mark, label)
    _label(bandwidth, "bus bandwidth (10$^9$ bytes/s)")
    _label(latency, "time (µs)")
    latency.set_yscale("log")
    bandwidth.set_ylim(bottom=0)
    if number:
        handles, labels = bandwidth.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(file, dpi=120)


def _series(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the results by what they have in common but for size."""
    series: dict[str, list[dict[str, Any]]] = {}
    name = record.get("operation") or record["args"][0]
    ranks = len(record["config"]["devices"])
    where = record.get("backend", "")
    for result in record["results"]:
        words = [name, result["type"]]
        words += [result["redop"]] if result["redop"] not in ("none", "") else []
        words += [f"root {result['root'].strip()}"] if int(result["root"]) >= 0 else []
        label = f"{' '.join(words)}, {ranks} ranks"
        series.setdefault(f"{label}, {where}" if where else label, []).append(result)
    return series


def _draw_series(
    bandwidth: Any,
    latency: Any,
    series: list[dict[str, Any]],
    name: str,
    color: str,
    style: str,
    mark: str,
    label: str,
) -> None:
    points = [(one["size"], one[name]) for one in series if one[name] and one["size"]]
    if not points:
        return
    sizes = [size for size, _ in points]
    look = {"color": color, "linestyle": style, "marker": mark, "markersize": 4}
    title = f"{label}, {name.replace('_', ' ')}"
    bandwidth.plot(sizes, [numbers["bus_bw"] for _, numbers in points], label=title, **look)
    times = [numbers.get("time", numbers.get("cpu_time")) for _, numbers in points]
    latency.plot(sizes, times, **look)


def _label(axes: Any, name: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: _size(value))
    axes.set_xlabel("size (bytes)")
    axes.set_ylabel(name)
    axes.grid(True, alpha=0.3)


def _size(value: float) -> str:
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
