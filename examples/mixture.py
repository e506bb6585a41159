"""A mixture of experts in place of a block's perceptron, and the exchange that it needs.

The router's choice has no gradient; the scores that weight what the experts return have.
"""

import math

import numpy as np
import training
import transformer
from transformer import Perceptron

from pynccl.parallel import Dispatch, part_of, places_in_order

CHOICES = 2  # experts for each vector
AXES = {"up": 0, "down": 0}  # the experts' matrices are split by expert; nothing else is split


class Experts:
    """x + the sum of scores times experts(normalize(x)), of each vector's chosen experts."""

    def __init__(self, comm, size, args, groups):
        here = part_of(args.experts, comm.rank, comm.nranks)
        self.comm, self.args, self.groups = comm, args, groups
        self.chosen = np.zeros(args.experts)  # since it was last looked at
        self.dropped = self.elsewhere = 0
        self.shapes = {
            "gain": (size.width,),
            "offset": (size.width,),
            "router": (size.width, args.experts),
            "up": (here.stop - here.start, size.width, size.width),
            "down": (here.stop - here.start, size.width, size.width),
        }

    def forward(self, xp, p, x):
        y, norm = transformer.normalize(xp, p["gain"], p["offset"], x)
        y = y.reshape(-1, y.shape[-1])
        scores = y @ p["router"]
        scores = xp.exp(scores - scores.max(axis=1, keepdims=True))
        scores = scores / scores.sum(axis=1, keepdims=True)

        # All vectors' best experts come first, and so have a place before the second best.
        best = xp.argsort(-scores, axis=1)[:, :CHOICES].T.reshape(-1)
        vector = xp.tile(xp.arange(len(y)), CHOICES)
        capacity = math.ceil(self.args.capacity * CHOICES * len(y) / self.args.experts)
        kept = xp.nonzero(places_in_order(best, self.args.experts, xp) < capacity)[0]
        share = (best[:, None] == xp.arange(self.args.experts)).mean(axis=0)
        self.chosen += training.to_host(share) * len(best)
        self.dropped += len(best) - len(kept)

        expert, vector = best[kept], vector[kept]
        dispatch = Dispatch(self.comm, training.to_host(expert), self.args.experts)
        self.elsewhere += 2 * dispatch.rows_elsewhere()
        inputs = dispatch.forth(y[vector])
        made, of_experts = self.experts(xp, p, inputs, dispatch.arrived)
        outputs = dispatch.back(made)
        weighted = outputs * scores[vector, expert][:, None]
        added = self.by_vector(xp, kept, weighted, len(y))
        weight = self.args.balance * self.args.experts / self.groups
        self.balance = weight * (share * scores.mean(axis=0)).sum()
        dscores = weight * share / len(y)
        keep = norm, y, scores, dscores, kept, expert, vector, dispatch, of_experts, outputs
        return x + added.reshape(x.shape), keep

    def by_vector(self, xp, kept, rows, count):
        """The sum of each vector's rows."""
        all_choices = xp.zeros((CHOICES * count, rows.shape[1]), rows.dtype)
        all_choices[kept] = rows
        return all_choices.reshape(CHOICES, count, -1).sum(axis=0)

    def experts(self, xp, p, rows, counts):
        made, kept, start = xp.empty_like(rows), [], 0
        for up, down, count in zip(p["up"], p["down"], counts):
            mine = slice(start, start + count)
            h, for_gelu = transformer.gelu(xp, rows[mine] @ up)
            made[mine] = h @ down
            kept.append((rows[mine], h, for_gelu))
            start += count
        return made, kept

    def experts_backward(self, xp, p, kept, d, counts):
        d_rows, start = xp.empty_like(d), 0
        gradients = {name: xp.zeros_like(p[name]) for name in AXES}
        for e, (count, (rows, h, for_gelu)) in enumerate(zip(counts, kept)):
            mine = slice(start, start + count)
            gradients["down"][e] = h.T @ d[mine]
            dh = transformer.gelu_backward(xp, for_gelu, d[mine] @ p["down"][e].T)
            gradients["up"][e] = rows.T @ dh
            d_rows[mine] = dh @ p["up"][e].T
            start += count
        return d_rows, gradients

    def backward(self, xp, p, keep, dx):
        norm, y, scores, dscores, kept, expert, vector, dispatch, of_experts, outputs = keep
        d = dx.reshape(y.shape)
        dscores = xp.zeros_like(scores) + dscores.astype(scores.dtype)
        dscores[vector, expert] += (d[vector] * outputs).sum(axis=1)
        d_made = dispatch.forth(d[vector] * scores[vector, expert][:, None])
        d_rows, gradients = self.experts_backward(xp, p, of_experts, d_made, dispatch.arrived)
        dy = self.by_vector(xp, kept, dispatch.back(d_rows), len(y))

        dlogits = scores * (dscores - (dscores * scores).sum(axis=1, keepdims=True))
        dy = (dy + dlogits @ p["router"].T).reshape(dx.shape)
        dy, gain, offset = transformer.normalize_backward(xp, p["gain"], norm, dy)
        return dx + dy, {"gain": gain, "offset": offset, "router": y.T @ dlogits, **gradients}


def build(comm, args, groups):
    size = training.size_of(args)
    return [
        Experts(comm, size, args, groups) if isinstance(layer, Perceptron) else layer
        for layer in transformer.build(size)
    ]


def starting_weights(args, layers):
    """The layers' whole weights; experts differ from one another from the start."""
    rng = np.random.default_rng(args.seed)
    weights = training.starting_weights(args)
    for index, layer in enumerate(layers):
        if isinstance(layer, Experts) and "router" not in weights[index]:
            width = args.width
            weights[index]["router"] = rng.normal(0, 0.1, (width, args.experts))
            for name in AXES:
                weights[index][name] = rng.normal(0, 0.1, (args.experts, width, width))
            weights[index] = {n: a.astype(args.dtype) for n, a in weights[index].items()}
    return weights
