"""Random MPI datatypes, nested and with gaps."""

import numpy as np
from mpi4py import MPI

# None complex: of those, deeply nested, Open MPI 5.0.11 packs now and then what lies beside them.
BASIC = [MPI.BYTE, MPI.SHORT, MPI.INT, MPI.DOUBLE]
PAIRS = [MPI.SHORT_INT, MPI.DOUBLE_INT, MPI.LONG_INT, MPI.FLOAT_INT, MPI.INT_INT]
DISTRIBUTIONS = [MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_NONE]
MOST_BYTES = 4000  # of data in one item, so that what is made of many does not grow beyond measure


class DatatypeMaker:
    """Makes the same datatypes on every rank, for one seed."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.made = []

    def free(self):
        """Free all that was made."""
        while self.made:
            self.made.pop().Free()

    def make(self, depth):
        """Return a committed datatype, not empty and without overlaps, and the steps it took."""
        base, steps = self._basic()
        for _ in range(depth):
            kind = self._choice(KINDS)
            found = kind(self, base)
            # Open MPI's bounds of an empty one are none.
            if not 0 < found.size <= MOST_BYTES or found.extent > 20 * MOST_BYTES:
                found.Free()
                continue
            self.made.append(found)
            base, steps = found, f"{kind.__name__}({steps})"
        return base.Commit(), steps

    def _basic(self):
        found = self._choice(BASIC + PAIRS)
        return found, found.name

    def _choice(self, options):
        return options[self._int(0, len(options) - 1)]

    def _int(self, low, high):
        return int(self.random.integers(low, high + 1))

    def contiguous(self, base):
        return base.Create_contiguous(self._int(0, 4))

    def vector(self, base):
        length = self._int(1, 3)
        stride = self._int(length, length + 3)
        if self._int(0, 1):
            stride = -stride - 1  # Open MPI 5.0.11 mistakes the sign of a distance of one byte
        return base.Create_vector(self._int(1, 4), length, stride)

    def hvector(self, base):
        length = self._int(1, 3)
        stride = length * reach(base) + self._int(0, 9)
        return base.Create_hvector(self._int(1, 4), length, stride)

    def _blocks(self):
        """Return lengths and displacements of blocks, in any order."""
        lengths = [self._int(0, 3) for _ in range(self._int(1, 5))]
        displs, at = [], self._int(-3, 3)
        for length in lengths:
            displs.append(at)
            at += length + self._int(0, 2)
        order = self.random.permutation(len(lengths))
        return [lengths[i] for i in order], [displs[i] for i in order]

    def indexed(self, base):
        return base.Create_indexed(*self._blocks())

    def hindexed(self, base):
        lengths, displs = self._blocks()
        return base.Create_hindexed(lengths, [displ * reach(base) + 1 for displ in displs])

    def indexed_block(self, base):
        length = self._int(1, 3)
        displs = self.random.permutation(5)[: self._int(1, 5)]
        return base.Create_indexed_block(length, [int(one) * length for one in displs])

    def hindexed_block(self, base):
        length = self._int(1, 3)
        displs = self.random.permutation(5)[: self._int(1, 5)]
        return base.Create_hindexed_block(
            length, [int(one) * (length * reach(base) + 2) for one in displs]
        )

    def struct(self, base):
        others = [self._basic()[0] for _ in range(self._int(0, 2))]
        members = [*others, base]
        self.random.shuffle(members)
        counts = [self._int(0, 2) for _ in members]
        displs, at = [], self._int(-8, 8)
        for member, count in zip(members, counts):
            displs.append(at - min(0, member.true_lb))
            at += (count + 1) * reach(member) + self._int(0, 5)
        return MPI.Datatype.Create_struct(counts, displs, members)

    def subarray(self, base):
        sizes = [self._int(1, 4) for _ in range(self._int(1, 3))]
        parts = [self._int(1, size) for size in sizes]
        starts = [self._int(0, size - part) for size, part in zip(sizes, parts)]
        order = self._choice([MPI.ORDER_C, MPI.ORDER_FORTRAN])
        return base.Create_subarray(sizes, parts, starts, order)

    def darray(self, base):
        axes = self._int(1, 3)
        sizes = [self._int(1, 6) for _ in range(axes)]
        ways = [self._choice(DISTRIBUTIONS) for _ in range(axes)]
        grid = [1 if way == MPI.DISTRIBUTE_NONE else self._int(1, 3) for way in ways]
        arguments, place = [], []
        for size, way, parts in zip(sizes, ways, grid):
            least = {MPI.DISTRIBUTE_BLOCK: -(-size // parts), MPI.DISTRIBUTE_CYCLIC: 1}
            length = least.get(way, size) + self._int(0, 1)
            place.append(self._int(0, min(parts - 1, (size - 1) // length)))  # has a part
            default = way not in least or (length == least[way] and self._int(0, 1))
            arguments.append(MPI.DISTRIBUTE_DFLT_DARG if default else length)
        ranks, rank = int(np.prod(grid)), int(np.ravel_multi_index(place, grid))
        order = self._choice([MPI.ORDER_C, MPI.ORDER_FORTRAN])
        return base.Create_darray(ranks, rank, sizes, ways, arguments, grid, order)

    def resized(self, base):
        return base.Create_resized(self._int(-4, 4), reach(base) + self._int(0, 9))

    def dup(self, base):
        return base.Dup()


KINDS = [
    DatatypeMaker.contiguous,
    DatatypeMaker.vector,
    DatatypeMaker.hvector,
    DatatypeMaker.indexed,
    DatatypeMaker.hindexed,
    DatatypeMaker.indexed_block,
    DatatypeMaker.hindexed_block,
    DatatypeMaker.struct,
    DatatypeMaker.subarray,
    DatatypeMaker.darray,
    DatatypeMaker.resized,
    DatatypeMaker.dup,
]


def reach(datatype):
    """Return a distance in bytes at which two items do not overlap."""
    return max(datatype.extent, datatype.true_extent, 1)
