"""A small transformer language model over bytes, with its backward passes written out.

The model is a list of layers: an embedding, blocks of attention and a perceptron, and a head. Each
has ``shapes`` (of its parameters), ``forward(xp, p, x)``, which returns its output and what its
backward pass needs, and ``backward(xp, p, kept, dy)``, which returns the gradients of its input
and of its parameters. ``xp`` is numpy or cupy. Nothing here communicates: where a scheme splits a
layer over several GPUs, it passes a ``split``, which is told where the split begins and ends.
What a layer can work out again from what it kept, it does not keep.

The architecture is that of GPT-2 (Radford et al. 2019) without biases in its matrices.
"""

from dataclasses import dataclass

import numpy as np

from pynccl.parallel import part_of


@dataclass(frozen=True)
class Size:
    layers: int = 2  # blocks
    width: int = 64
    heads: int = 4
    context: int = 48  # bytes that the model looks at
    vocabulary: int = 256

    @property
    def head_width(self):
        return self.width // self.heads


class Whole:
    """A layer that is not split: nothing happens where a split layer would communicate."""

    rank, nranks = 0, 1

    def enter(self, x):
        return x

    enter_backward = leave = leave_backward = enter

    def places(self, count):
        return slice(0, count)


WHOLE = Whole()

# The axis along which tensor parallel training splits a matrix: qkv and out by heads, up and down
# by hidden values, table and unembed by bytes. What is not named here is not split.
SPLIT_AXIS = {"qkv": 2, "out": 0, "up": 1, "down": 0, "table": 0, "unembed": 1}


def length(part):
    return part.stop - part.start


def normalize(xp, gain, offset, x):
    """Layer normalization along the last axis (Ba et al. 2016)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / xp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)
    unit = centred * scale
    return unit * gain + offset, (unit, scale)


def normalized(gain, offset, kept):
    """What ``normalize`` returned, from what it kept."""
    return kept[0] * gain + offset


def normalize_backward(xp, gain, kept, dy):
    unit, scale = kept
    d = dy * gain
    along = (d * unit).mean(axis=-1, keepdims=True)
    dx = (d - d.mean(axis=-1, keepdims=True) - unit * along) * scale
    rows = tuple(range(dy.ndim - 1))
    return dx, (dy * unit).sum(axis=rows), dy.sum(axis=rows)


def gelu(xp, x):
    """The smooth rectifier, by its tanh formula (Hendrycks and Gimpel 2016)."""
    t = xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + t), (x, t)


def gelu_backward(xp, kept, dy):
    x, t = kept
    inner = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x)
    return dy * 0.5 * (1 + t + x * (1 - t * t) * inner)


def attend(xp, q, k, v):
    """Causal attention; arrays of (batch, heads, length, head width)."""
    size = q.shape[-1] ** -0.5
    scores = (q @ k.swapaxes(-1, -2)) * size
    future = xp.triu(xp.ones(scores.shape[-2:], bool), 1)
    scores = xp.where(future, -xp.inf, scores)
    weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ v, (q, k, v, weights)


def attend_backward(xp, kept, dy):
    q, k, v, weights = kept
    size = q.shape[-1] ** -0.5
    dweights = dy @ v.swapaxes(-1, -2)
    inner = (dweights * weights).sum(axis=-1, keepdims=True)
    dscores = weights * (dweights - inner) * size
    return dscores @ k, dscores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ dy


def outer(xp, x, dy):
    """The gradient of a matrix from what went in and the gradient of what came out."""
    return x.reshape(-1, x.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])


class Embedding:
    """Bytes to vectors, and a vector for each place."""

    def __init__(self, size, split=WHOLE):
        self.rows = part_of(size.vocabulary, split.rank, split.nranks)
        self.split = split
        self.shapes = {
            "table": (length(self.rows), size.width),
            "places": (length(split.places(size.context)), size.width),
        }

    def forward(self, xp, p, tokens):
        chosen = tokens[..., None] == xp.arange(self.rows.start, self.rows.stop)
        chosen = chosen.astype(p["table"].dtype)
        return self.split.leave(chosen @ p["table"]) + p["places"], chosen

    def backward(self, xp, p, chosen, dy):
        dtable = outer(xp, chosen, self.split.leave_backward(dy))
        return None, {"table": dtable, "places": dy.sum(axis=0)}


class Attention:
    """x + attention(normalize(x))"""

    attend, attend_backward = staticmethod(attend), staticmethod(attend_backward)

    def __init__(self, size, split=WHOLE):
        heads = length(part_of(size.heads, split.rank, split.nranks))
        self.heads, self.split = heads, split
        self.shapes = {
            "gain": (size.width,),
            "offset": (size.width,),
            "qkv": (size.width, 3, heads, size.head_width),
            "out": (heads, size.head_width, size.width),
        }

    def forward(self, xp, p, x):
        y, norm = normalize(xp, p["gain"], p["offset"], x)
        y = self.split.enter(y)
        batch, places, width = y.shape
        qkv = (y @ p["qkv"].reshape(width, -1)).reshape(batch, places, 3, self.heads, -1)
        a, kept = self.attend(xp, *qkv.transpose(2, 0, 3, 1, 4))
        a = a.transpose(0, 2, 1, 3).reshape(batch, places, -1)
        return x + self.split.leave(a @ p["out"].reshape(-1, width)), (norm, kept, a)

    def backward(self, xp, p, kept, dx):
        norm, kept, a = kept
        y = self.split.enter(normalized(p["gain"], p["offset"], norm))
        dy = self.split.leave_backward(dx)
        batch, places, width = dy.shape
        dout = outer(xp, a, dy).reshape(p["out"].shape)
        da = (dy @ p["out"].reshape(-1, width).T).reshape(batch, places, self.heads, -1)
        dqkv = xp.stack(self.attend_backward(xp, kept, da.transpose(0, 2, 1, 3)))
        dqkv = dqkv.transpose(1, 3, 0, 2, 4).reshape(batch, places, -1)
        matrix = outer(xp, y, dqkv).reshape(p["qkv"].shape)
        dy = self.split.enter_backward(dqkv @ p["qkv"].reshape(width, -1).T)
        dy, gain, offset = normalize_backward(xp, p["gain"], norm, dy)
        return dx + dy, {"gain": gain, "offset": offset, "qkv": matrix, "out": dout}


class Perceptron:
    """x + down(gelu(up(normalize(x))))"""

    def __init__(self, size, split=WHOLE):
        hidden = length(part_of(4 * size.width, split.rank, split.nranks))
        self.split = split
        self.shapes = {
            "gain": (size.width,),
            "offset": (size.width,),
            "up": (size.width, hidden),
            "down": (hidden, size.width),
        }

    def forward(self, xp, p, x):
        y, norm = normalize(xp, p["gain"], p["offset"], x)
        y = self.split.enter(y)
        h, kept = gelu(xp, y @ p["up"])
        return x + self.split.leave(h @ p["down"]), (norm, kept, h)

    def backward(self, xp, p, kept, dx):
        norm, kept, h = kept
        y = self.split.enter(normalized(p["gain"], p["offset"], norm))
        dy = self.split.leave_backward(dx)
        down = outer(xp, h, dy)
        dh = gelu_backward(xp, kept, dy @ p["down"].T)
        up = outer(xp, y, dh)
        dy = self.split.enter_backward(dh @ p["up"].T)
        dy, gain, offset = normalize_backward(xp, p["gain"], norm, dy)
        return dx + dy, {"gain": gain, "offset": offset, "up": up, "down": down}


class Head:
    """Vectors to a score for each byte."""

    def __init__(self, size, split=WHOLE):
        columns = length(part_of(size.vocabulary, split.rank, split.nranks))
        self.split = split
        self.shapes = {
            "gain": (size.width,),
            "offset": (size.width,),
            "unembed": (size.width, columns),
        }

    def forward(self, xp, p, x):
        y, norm = normalize(xp, p["gain"], p["offset"], x)
        y = self.split.enter(y)
        return y @ p["unembed"], norm

    def backward(self, xp, p, norm, dlogits):
        y = self.split.enter(normalized(p["gain"], p["offset"], norm))
        unembed = outer(xp, y, dlogits)
        dy = self.split.enter_backward(dlogits @ p["unembed"].T)
        dx, gain, offset = normalize_backward(xp, p["gain"], norm, dy)
        return dx, {"gain": gain, "offset": offset, "unembed": unembed}


def cross_entropy(xp, logits, targets, scale):
    """The loss, summed over all bytes and scaled, and its gradient."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    logs = logits - xp.log(xp.exp(logits).sum(axis=-1, keepdims=True))
    target = targets[..., None] == xp.arange(logits.shape[-1])
    return -(logs * target).sum() * scale, (xp.exp(logs) - target) * xp.asarray(scale, logs.dtype)


def build(size, split=WHOLE):
    """The layers of the model, from first to last."""
    blocks = [kind(size, split) for _ in range(size.layers) for kind in (Attention, Perceptron)]
    return [Embedding(size, split), *blocks, Head(size, split)]


def first_weights(size, seed, dtype=np.float32):
    """The parameters of each layer, as numpy arrays; the same for all who ask."""
    rng = np.random.default_rng(seed)
    deep = (2 * size.layers) ** -0.5
    weights = []
    for layer in build(size):
        drawn = {}
        for name, shape in layer.shapes.items():
            if name in ("gain", "offset"):
                drawn[name] = np.full(shape, name == "gain", dtype)
            else:
                spread = 0.1 * (deep if name in ("out", "down") else 1)
                drawn[name] = rng.normal(0, spread, shape).astype(dtype)
        weights.append(drawn)
    return weights


def listed(layers, arrays):
    """All layers' arrays in one list, in the order of the layers' shapes."""
    return [of_layer[name] for layer, of_layer in zip(layers, arrays) for name in layer.shapes]


def forward(xp, layers, weights, x):
    """What comes out of the last layer, and what each layer's backward pass needs."""
    kept = []
    for layer, p in zip(layers, weights):
        x, keep = layer.forward(xp, p, x)
        kept.append(keep)
    return x, kept


def forward_backward(xp, layers, weights, tokens, targets, scale, loss_of=cross_entropy):
    """The loss of a batch and the gradients of every layer's parameters."""
    x, kept = forward(xp, layers, weights, tokens)
    loss, d = loss_of(xp, x, targets, scale)
    gradients = []
    for layer, p, keep in zip(reversed(layers), reversed(weights), reversed(kept)):
        d, gradient = layer.backward(xp, p, keep, d)
        gradients.append(gradient)
    return loss, gradients[::-1]


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), on arrays of any shape."""

    def __init__(self, xp, arrays, rate=3e-3, decay=0.01):
        self.rate, self.decay, self.steps = rate, decay, 0
        self.first = [xp.zeros_like(array) for array in arrays]
        self.second = [xp.zeros_like(array) for array in arrays]

    def step(self, xp, arrays, gradients):
        """Change the arrays in place."""
        self.steps += 1
        one, two = 1 - 0.9**self.steps, 1 - 0.95**self.steps
        for x, g, m, v in zip(arrays, gradients, self.first, self.second):
            m += 0.1 * (g - m)
            v += 0.05 * (g * g - v)
            x -= self.rate * (m / one / (xp.sqrt(v / two) + 1e-8) + self.decay * x)

    @property
    def nbytes(self):
        return sum(array.nbytes for array in self.first + self.second)
