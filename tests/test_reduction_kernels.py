"""The emulator's reductions, bit for bit against numpy and ml_dtypes, each step rounded."""

from __future__ import annotations

import ctypes
import itertools
import os
import shlex
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "pynccl" / "emulator" / "src"

# In the order of ncclDataType_t.
TYPES = [np.dtype(t) for t in (
    np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
OPS = ["sum", "prod", "max", "min", "avg", "pre_mul_sum"]
NARROW = [t for t in TYPES if t.itemsize == 1 and t.kind not in "iu"]
WIDE_FLOATS = [t for t in TYPES if t.itemsize > 1 and t.kind not in "iu"]
COUNTS = [0, 1, 7, 64, 1000, 100_003]
GUARD = 0xA5


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("kernels") / "libreduce.so"
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    subprocess.run(
        [*compiler, "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-shared",
         f"-I{SOURCES}", *sorted(map(str, SOURCES.glob("reduce*.cc"))), str(SOURCES / "copy.cc"),
         str(ROOT / "tests" / "native" / "reduce_shim.cc"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(params=["plain", "avx2", "avx512"])
def kernels(library: ctypes.CDLL, request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library, with the loops of one instruction set chosen."""
    library.choose_loops.restype = ctypes.c_bool
    if not library.choose_loops(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    return library


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind not in "iu"


def rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values in the element type; float8 saturates to its largest finite number."""
    if dtype in NARROW:
        largest = float(ml_dtypes.finfo(dtype).max)
        values = np.clip(values, -largest, largest)
    return values.astype(dtype)


def step(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One reduction of two operands, in the precision in which NCCL computes it."""
    dtype = a.dtype
    if dtype in NARROW:
        a, b = a.astype(np.float16), b.astype(np.float16)
    with np.errstate(all="ignore"):
        if op == "sum":
            result = a + b
        elif op == "prod":
            result = a * b
        elif not is_float(dtype):
            result = np.maximum(a, b) if op == "max" else np.minimum(a, b)
        else:  # a number wins over NaN, and -0 is less than +0
            less = (a < b) | ((a == b) & np.signbit(a))
            result = np.where(less == (op == "max"), b, a)
            result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))
        return rounded(result, dtype)


def divide(total: np.ndarray, n: int) -> np.ndarray:
    """Integers divided by n, truncating toward zero."""
    if total.dtype.kind == "u":
        return total // np.array(n, np.uint64)
    quotient = total.astype(object) if total.dtype.itemsize == 8 else total.astype(np.int64)
    return np.where(quotient < 0, -(-quotient // n), quotient // n).astype(total.dtype)


def reference(op: str, sources: list[np.ndarray], scalars: np.ndarray) -> np.ndarray:
    dtype, n = sources[0].dtype, len(sources)
    if op == "avg" and is_float(dtype):
        scalars = np.full(n, rounded(np.array(1 / n), dtype))
    if op == "pre_mul_sum" or (op == "avg" and is_float(dtype)):
        sources = [step("prod", x, np.full_like(x, s)) for x, s in zip(sources, scalars)]
    result = sources[0]
    for source in sources[1:]:
        result = step(op if op in ("prod", "max", "min") else "sum", result, source)
    return divide(result, n).astype(dtype) if op == "avg" and not is_float(dtype) else result


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits; a NaN equals any other."""
    bits = f"u{actual.itemsize}"
    same = actual.view(bits) == expected.view(bits)
    if is_float(actual.dtype):
        same |= np.isnan(actual) & np.isnan(expected)
    wrong = np.flatnonzero(~same)
    assert wrong.size == 0, (
        f"{wrong.size} of {actual.size} differ, first at {wrong[0]}: "
        f"{actual[wrong[0]]} instead of {expected[wrong[0]]}")


def any_values(random: np.random.Generator, dtype: np.dtype, count: int) -> np.ndarray:
    """Every kind of value: half of the elements random bits, the others not overflowing."""
    values = random.integers(0, 256, (count, dtype.itemsize), np.uint8).view(dtype)[:, 0]
    if not is_float(dtype):
        return values
    moderate = rounded(random.normal(size=count), dtype)
    return np.where(random.random(count) < 0.5, values, moderate).astype(dtype)


def placed(values: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins `offset` elements after a cache line, with guard bytes around it."""
    size = values.itemsize
    raw = np.full(values.nbytes + 256 + offset * size, GUARD, np.uint8)
    start = -raw.ctypes.data % 64 + offset * size
    place = raw[start:start + values.nbytes].view(values.dtype)
    place[:] = values
    return place


def guards(place: np.ndarray) -> np.ndarray:
    raw = place
    while isinstance(raw.base, np.ndarray):
        raw = raw.base
    start = place.ctypes.data - raw.ctypes.data
    return np.concatenate([raw[:start], raw[start + place.nbytes:]])


def reduce(kernels: ctypes.CDLL, op: str, sources: list[np.ndarray], scalars: np.ndarray,
           destinations: list[np.ndarray], around: bool | None = None) -> None:
    """By the loops that were chosen; given ``around``, by those that the emulator chooses."""
    def pointers(arrays: list[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))

    arguments = (
        TYPES.index(sources[0].dtype), OPS.index(op), pointers(sources), len(sources),
        ctypes.c_void_p(scalars.ctypes.data), pointers(destinations), len(destinations),
        ctypes.c_size_t(sources[0].size))
    if around is None:
        kernels.reduce_with_loops(*arguments)
    else:
        kernels.reduce_elements(*arguments, around)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reduction_rounds_each_step_in_source_order(
        kernels: ctypes.CDLL, dtype: np.dtype, op: str) -> None:
    random = np.random.default_rng(OPS.index(op) * 100 + TYPES.index(dtype))
    for count, nsources in itertools.product(COUNTS, [1, 2, 3, 4, 5, 8]):
        scalars = any_values(random, dtype, nsources)
        values = [any_values(random, dtype, count) for _ in range(nsources)]
        expected = reference(op, values, scalars)

        sources = [placed(v, random.integers(0, 64)) for v in values]
        apart = [placed(np.zeros(count, dtype), random.integers(0, 64)) for _ in range(2)]
        reduce(kernels, op, sources, scalars, apart)
        for destination in apart:
            assert_same_bits(destination, expected)
            assert (guards(destination) == GUARD).all()
        for source, value in zip(sources, values):
            assert source.tobytes() == value.tobytes()

        last = nsources - 1
        targets = [apart[0], sources[last], sources[0]][:2 + (last > 0)]
        reduce(kernels, op, sources, scalars, targets)
        for destination in (apart[0], sources[last], sources[0]):
            assert_same_bits(destination, expected)
            assert (guards(destination) == GUARD).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_reduction_around_the_caches_gives_the_same_bits(
        library: ctypes.CDLL, dtype: np.dtype) -> None:
    random = np.random.default_rng(TYPES.index(dtype))
    for count, op in itertools.product(COUNTS, OPS):
        scalars = any_values(random, dtype, 3)
        values = [any_values(random, dtype, count) for _ in range(3)]
        sources = [placed(v, random.integers(0, 64)) for v in values]
        targets = [placed(np.zeros(count, dtype), random.integers(0, 64)), sources[1]]
        reduce(library, op, sources, scalars, targets, around=True)
        for destination in targets:
            assert_same_bits(destination, reference(op, values, scalars))
            assert (guards(destination) == GUARD).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_float8_is_right_for_every_pair_of_values(
        kernels: ctypes.CDLL, dtype: np.dtype, op: str) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype)
    pair = [np.repeat(every, 256), np.tile(every, 256)]
    for scalar in every if op == "pre_mul_sum" else every[:1]:
        sources = pair if op != "pre_mul_sum" else [every, every[::-1].copy()]
        scalars = np.array([scalar, every[57]], dtype)
        out = np.zeros_like(sources[0])
        reduce(kernels, op, sources, scalars, [out])
        assert_same_bits(out, reference(op, sources, scalars))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
@pytest.mark.parametrize("dtype", WIDE_FLOATS, ids=str)
def test_edges_of_the_floating_types(kernels: ctypes.CDLL, dtype: np.dtype, op: str) -> None:
    info = ml_dtypes.finfo(dtype)
    some = np.array([0, info.smallest_subnormal, info.tiny, 1, info.eps, info.eps / 2, 1 + info.eps,
                     1.5, info.max, info.max / 2, np.inf, np.nan], dtype)
    some = np.concatenate([some, -some])
    if dtype.itemsize == 2:
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    else:
        every = np.concatenate([some, any_values(np.random.default_rng(0), dtype, 1000)])
    for other in some:
        for sources in ([every, np.full_like(every, other)], [np.full_like(every, other), every]):
            out = np.zeros_like(every)
            reduce(kernels, op, sources, some, [out])
            assert_same_bits(out, reference(op, sources, some))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_float8_saturates_and_keeps_nan(kernels: ctypes.CDLL, dtype: np.dtype) -> None:
    largest = float(ml_dtypes.finfo(dtype).max)
    a = np.array([largest, -largest, np.nan, largest], dtype)
    b = np.array([largest, -largest, 1, np.nan], dtype)
    out = np.zeros_like(a)
    reduce(kernels, "sum", [a, b], a, [out])
    np.testing.assert_array_equal(out.astype(float), [largest, -largest, np.nan, np.nan])


def test_integer_average_truncates_toward_zero(kernels: ctypes.CDLL) -> None:
    out = np.zeros(3, np.int32)
    reduce(kernels, "avg", [np.array([-7, 7, 0], np.int32), np.zeros(3, np.int32)], out, [out])
    assert out.tolist() == [-3, 3, 0]


def test_integers_wrap(kernels: ctypes.CDLL) -> None:
    out = np.zeros(2, np.int64)
    largest = np.array([2**63 - 1, -(2**63)], np.int64)
    reduce(kernels, "sum", [largest, np.array([1, -1], np.int64)], out, [out])
    assert out.tolist() == [-(2**63), 2**63 - 1]


@pytest.mark.parametrize("around", [False, True], ids=["cached", "around the caches"])
@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4097, 5_000_003])
def test_copy_moves_every_byte_and_no_other(
        library: ctypes.CDLL, nbytes: int, around: bool) -> None:
    source = placed(np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8), 5)
    destination = placed(np.zeros(nbytes, np.uint8), 11)
    library.copy_bytes(ctypes.c_void_p(destination.ctypes.data),
                       ctypes.c_void_p(source.ctypes.data), ctypes.c_size_t(nbytes), around)
    assert destination.tobytes() == source.tobytes()
    assert (guards(destination) == GUARD).all()
