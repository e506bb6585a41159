"""Attention round a ring, against attention over the whole sequence in numpy."""

import numpy
import pytest

from pynccl.parallel import RingAttention


def whole_attention(q, k, v, dy):
    """Causal attention over all places, and its gradients, in the plain way."""
    places = q.shape[-2]
    scores = numpy.einsum("bhqd,bhkd->bhqk", q, k) / numpy.sqrt(q.shape[-1])
    scores[..., numpy.triu(numpy.ones((places, places), bool), 1)] = -numpy.inf
    weights = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    dweights = numpy.einsum("bhqd,bhkd->bhqk", dy, v)
    dscores = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))
    dscores /= numpy.sqrt(q.shape[-1])
    return (
        numpy.einsum("bhqk,bhkd->bhqd", weights, v),
        numpy.einsum("bhqk,bhkd->bhqd", dscores, k),
        numpy.einsum("bhqk,bhqd->bhkd", dscores, q),
        numpy.einsum("bhqk,bhqd->bhkd", weights, dy),
    )


@pytest.mark.parametrize("stretch", [1, 5])
def test_ring_attention_and_its_gradients_are_those_of_the_whole(comm, stretch):
    generator = numpy.random.default_rng(7)
    shape = (2, 3, stretch * comm.nranks, 4)
    q, k, v, dy = generator.standard_normal((4, *shape))
    mine = (..., slice(comm.rank * stretch, (comm.rank + 1) * stretch), slice(None))
    ring = RingAttention(comm)
    with comm.compute() as xp:
        q_, k_, v_, dy_ = (xp.asarray(array[mine]) for array in (q, k, v, dy))
        output, kept = ring.forward(xp, q_, k_, v_)
        gradients = ring.backward(xp, kept, dy_)
    for part, expected in zip((output, *gradients), whole_attention(q, k, v, dy)):
        numpy.testing.assert_allclose(part, expected[mine], rtol=1e-10, atol=1e-12)
