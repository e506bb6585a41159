"""Attention over a sequence whose places are dealt out to the ranks."""

from __future__ import annotations

from typing import Any

from pynccl.communicator import Communicator
from pynccl.parallel.functional import staged

__all__ = ["RingAttention"]


class RingAttention:
    """Causal attention in which keys and values go round a ring of ranks.

    Each rank holds the queries, keys and values of a stretch of places, rank 0 the first; all
    stretches are of one length. In n steps each rank sees all keys and values, and keeps of the
    scores only what the softmax needs: no rank ever holds a square of the whole length.

    For keys of S bytes on a rank, the forward pass sends 2 (n-1) S bytes, and the backward pass,
    where the gradients travel with what they belong to, 2 (2 n - 1) S.

    Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context".

    Args:
        comm: the communicator of the ranks that share the sequence
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def forward(self, xp: Any, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        """Return the attention of this rank's places, and what the backward pass needs.

        Args:
            q, k, v: arrays of (batch, heads, places, head width)
        """
        size = q.shape[-1] ** -0.5
        output, total = xp.zeros_like(v), xp.zeros((*q.shape[:-1], 1), q.dtype)
        highest = xp.full_like(total, -xp.inf)
        pair = xp.stack([k, v])
        for turn in range(self.comm.nranks):
            if turn:
                pair = self._passed_on(pair)
            if turn > self.comm.rank:
                continue  # a later stretch, which these places do not see
            scores = self._scores(xp, q, pair[0], size, own=turn == 0)
            higher = xp.maximum(highest, scores.max(axis=-1, keepdims=True))
            weights, shrink = xp.exp(scores - higher), xp.exp(highest - higher)
            output = output * shrink + weights @ pair[1]
            total = total * shrink + weights.sum(axis=-1, keepdims=True)
            highest = higher
        output = output / total
        return output, (q, k, v, output, highest + xp.log(total))

    def backward(self, xp: Any, kept: Any, dy: Any) -> tuple[Any, Any, Any]:
        """Return the gradients of this rank's queries, keys and values."""
        q, k, v, output, logs = kept
        size = q.shape[-1] ** -0.5
        along = (dy * output).sum(axis=-1, keepdims=True)
        dq = xp.zeros_like(q)
        four = xp.stack([k, v, xp.zeros_like(k), xp.zeros_like(v)])
        for turn in range(self.comm.nranks):
            if turn:
                four = self._passed_on(four)
            if turn > self.comm.rank:
                continue
            keys, values = four[0], four[1]
            weights = xp.exp(self._scores(xp, q, keys, size, own=turn == 0) - logs)
            dscores = weights * (dy @ values.swapaxes(-1, -2) - along) * size
            dq = dq + dscores @ keys
            four = xp.stack(
                [
                    keys,
                    values,
                    four[2] + dscores.swapaxes(-1, -2) @ q,
                    four[3] + weights.swapaxes(-1, -2) @ dy,
                ]
            )
        gradients = four[2:] if self.comm.nranks == 1 else self._passed_on(four[2:])
        return dq, gradients[0], gradients[1]

    def _scores(self, xp: Any, q: Any, k: Any, size: float, own: bool) -> Any:
        scores = (q @ k.swapaxes(-1, -2)) * size
        if not own:
            return scores
        future = xp.triu(xp.ones(scores.shape[-2:], bool), 1)
        return xp.where(future, -xp.inf, scores)

    def _passed_on(self, x: Any) -> Any:
        """Give an array to the next rank and return that of the one before."""
        comm = self.comm
        received = comm.empty(x.shape, x.dtype)
        after, before = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
        comm.sendrecv(staged(comm, x), after, received, before)
        with comm.compute() as xp:
            return xp.asarray(received)
