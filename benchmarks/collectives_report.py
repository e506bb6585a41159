"""The times of benchmarks/collectives.py as tables and as pictures."""

import pathlib

PYNCCL = ("pynccl", "unchecked")
COLORS = {"Open MPI": "C1", "MPICH": "C2", "gloo": "C3"}


def moved(operation, nbytes, nranks):
    """Bytes that each rank, on average, must read and write: inputs once, results once."""
    part = nbytes / nranks
    return nbytes + (part if operation in ("allgather", "reduce_scatter", "broadcast") else nbytes)


def allowed(row):
    """Seconds that the memory needs; a copy of so many bytes reads and writes them."""
    must = moved(row["operation"], row["bytes"], row["ranks"])
    return row["seconds"]["copy"] * must / (2 * row["bytes"])


def cells(row, names):
    """What a table says of a row: microseconds by name, pynccl beside the best, part of memory."""
    seconds = row["seconds"]
    others = [value for name, value in seconds.items() if name not in (*PYNCCL, "copy")]
    best = f"{seconds['pynccl'] / min(others):.2f}" if others else "-"
    times = [f"{seconds[name] * 1e6:,.0f}" if name in seconds else "-" for name in names]
    return [*times, best, f"{allowed(row) / seconds['pynccl']:.0%}"]


def text(row, names, first):
    """Lines for the terminal, in microseconds; the columns' names before the first."""
    if first:
        columns = [*names, "best", "memory"]
        yield f"{'ranks':5} {'operation':14} {'type':8} {'bytes':>10}" + "".join(
            f"{name:>11}" for name in columns
        )
    line = f"{row['ranks']:5} {row['operation']:14} {row['type']:8} {row['bytes']:10,}"
    yield line + "".join(f"{cell:>11}" for cell in cells(row, names))


def markdown(row, names, first):
    """Lines of a table in a document, in microseconds."""
    if first:
        columns = ["ranks", "operation", "type", "bytes", *names, "best", "memory"]
        yield f"\n| {' | '.join(columns)} |"
        yield "|---:|---|---|---:|" + "---:|" * (len(names) + 2)
    what = str(row["ranks"]), row["operation"], row["type"], f"{row['bytes']:,}"
    yield f"| {' | '.join([*what, *cells(row, names)])} |"


def draw(rows, names, folder):
    """A picture for each number of ranks and type: time against size, a panel per operation."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for row in rows:
        pictures.setdefault((row["ranks"], row["type"]), []).append(row)
    for (nranks, type), some in pictures.items():
        file = folder / f"collectives-{nranks}-{type}.png"
        picture(some, names, f"{nranks} ranks, {type}", file)
        print(f"drawn: {file}")


def picture(rows, names, title, file):
    from matplotlib.figure import Figure

    panels = {}
    for row in rows:
        panels.setdefault(row["operation"], []).append(row)
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.2 * across + 0.4, 3.4 * down + 1), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    lines = {}
    for axes, (operation, some) in zip(grid.flat, panels.items()):
        axes.set_title(operation)
        for name in names:
            line = curve(axes, some, name)
            if line is not None:
                lines[label(name)] = line
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: size(value))
        axes.grid(True, alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("time of a call, µs")
    for axes in grid[-1]:
        axes.set_xlabel("size, bytes")
    figure.suptitle(title)
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=len(lines))
    figure.savefig(file, dpi=120)


def curve(axes, rows, name):
    """The times of one library in a panel; None where it has none."""
    points = [
        (row["bytes"], (allowed(row) if name == "copy" else row["seconds"][name]) * 1e6)
        for row in rows
        if name in row["seconds"]
    ]
    if not points:
        return None
    look = {"color": COLORS.get(name, "C4"), "marker": "o", "markersize": 3.5, "linewidth": 1.3}
    if name in PYNCCL:
        look.update(color="C0", linewidth=2.2)
    if name == "unchecked":
        look.update(linestyle="--", marker=None, linewidth=1.3, color="black")
    if name == "copy":
        look.update(color="0.5", linestyle=":", marker=None)
    (line,) = axes.loglog(*zip(*points), **look)
    return line


def label(name):
    return {"unchecked": "pynccl, unchecked", "copy": "what memory allows"}.get(name, name)


def size(value):
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"
