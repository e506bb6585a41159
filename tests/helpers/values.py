"""Values for tests: every element type, patterns that tell ranks apart, references in numpy."""

import ml_dtypes
import numpy

DTYPES = {
    name: numpy.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
    )
}
SIZES = (0, 1, 7, 1000, 40001)


def pattern(rank, count, dtype):
    """Return small integers, exact in every type, that differ between ranks and along the array."""
    values = (numpy.arange(count) % 3 + rank % 2 + 1).astype("int64")
    return values.astype("float32").astype(dtype)


def as_numbers(array):
    """Return an array in float64, in which small integers of every type compare."""
    return numpy.asarray(array).astype("float64")


def reduced(op, contributions):
    """Return what an exact reduction of the ranks' arrays gives, in float64."""
    stacked = numpy.stack([as_numbers(array) for array in contributions])
    if op == "AVG":
        return stacked.mean(axis=0)
    functions = {"SUM": numpy.sum, "PROD": numpy.prod, "MAX": numpy.max, "MIN": numpy.min}
    return functions[op](stacked, axis=0)
