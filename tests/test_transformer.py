"""The transformer of the training examples: its gradients against PyTorch's, and that it learns."""

import argparse
import sys

import numpy as np
import pytest
from helpers.launch import REPOSITORY

import pynccl

sys.path.insert(0, str(REPOSITORY / "examples"))

import mixture  # noqa: E402
import text  # noqa: E402
import transformer  # noqa: E402

SIZE = transformer.Size(layers=2, width=24, heads=3, context=10, vocabulary=37)
SCALE = 1 / 7


def tokens(seed=5):
    return np.random.default_rng(seed).integers(0, SIZE.vocabulary, (4, SIZE.context))


def forward_in_torch(torch, weights, x):
    functional = torch.nn.functional
    width = (SIZE.width,)
    embedding, *blocks, head = weights
    x = embedding["table"][x] + embedding["places"]
    for attention, perceptron in zip(blocks[::2], blocks[1::2]):
        y = functional.layer_norm(x, width, attention["gain"], attention["offset"])
        q, k, v = torch.einsum("btd,dshw->sbhtw", y, attention["qkv"])
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + torch.einsum("bhtw,hwd->btd", a, attention["out"])
        y = functional.layer_norm(x, width, perceptron["gain"], perceptron["offset"])
        x = x + functional.gelu(y @ perceptron["up"], approximate="tanh") @ perceptron["down"]
    return functional.layer_norm(x, width, head["gain"], head["offset"]) @ head["unembed"]


def test_loss_and_every_gradient_equal_those_of_pytorch():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    weights = transformer.first_weights(SIZE, seed=3, dtype=np.float64)
    for layer in weights:  # not ones and zeros, which hide mistakes
        for name in {"gain", "offset"} & layer.keys():
            layer[name] += np.random.default_rng(4).normal(0, 0.3, layer[name].shape)
    x, y = tokens(), tokens(6)
    loss, gradients = transformer.forward_backward(
        np, transformer.build(SIZE), weights, x, y, SCALE
    )

    theirs = [
        {name: torch.tensor(array, requires_grad=True) for name, array in layer.items()}
        for layer in weights
    ]
    logits = forward_in_torch(torch, theirs, torch.tensor(x))
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(y).flatten(), reduction="sum"
    )
    (expected * SCALE).backward()

    assert loss == pytest.approx(expected.item() * SCALE, rel=1e-10)
    for layer, ours in zip(theirs, gradients):
        assert layer.keys() == ours.keys()
        for name, array in ours.items():
            np.testing.assert_allclose(array, layer[name].grad, rtol=1e-8, atol=1e-10)


def test_adamw_steps_equal_those_of_pytorch():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    rng = np.random.default_rng(1)
    ours = [rng.normal(size=(3, 4)), rng.normal(size=5)]
    theirs = [torch.tensor(array.copy(), requires_grad=True) for array in ours]
    optimizer = transformer.AdamW(np, ours, rate=0.01, decay=0.1)
    expected = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1, betas=(0.9, 0.95))
    for _ in range(5):
        gradients = [rng.normal(size=array.shape) for array in ours]
        for array, gradient in zip(theirs, gradients):
            array.grad = torch.tensor(gradient)
        expected.step()
        optimizer.step(np, ours, gradients)
    for array, other in zip(ours, theirs):
        np.testing.assert_allclose(array, other.detach().numpy(), rtol=1e-10)


def test_gradients_of_the_mixture_of_experts_are_its_slopes():
    args = argparse.Namespace(
        layers=1, width=8, heads=2, context=6, seed=1, dtype="float64", load=None,
        experts=4, capacity=0.9, balance=0.5,
    )  # fmt: skip
    x, y = tokens()[:, :6], tokens(6)[:, :6]
    with pynccl.Communicator.init(1, 0, pynccl.get_unique_id(), device=0) as comm:
        layers = mixture.build(comm, args, groups=1)
        weights = mixture.starting_weights(args, layers)

        def loss():
            value, gradients = transformer.forward_backward(np, layers, weights, x, y, SCALE)
            return value + layers[2].balance, gradients

        _, gradients = loss()
        assert layers[2].dropped > 0
        for array, gradient in zip(
            transformer.listed(layers, weights), transformer.listed(layers, gradients)
        ):
            direction = np.random.default_rng(array.size).normal(size=array.shape)
            array += 1e-6 * direction
            above, _ = loss()
            array -= 2e-6 * direction
            below, _ = loss()
            array += 1e-6 * direction
            slope = (above - below) / 2e-6
            assert slope == pytest.approx((gradient * direction).sum(), rel=1e-5, abs=1e-8)


def test_arrays_stay_in_the_precision_of_the_weights():
    weights = transformer.first_weights(SIZE, seed=3)
    _, gradients = transformer.forward_backward(
        np, transformer.build(SIZE), weights, tokens(), tokens(6), SCALE
    )
    assert {array.dtype for layer in gradients for array in layer.values()} == {np.dtype("f4")}


def test_text_is_pythons_library_and_batches_repeat():
    sources = text.library_sources()
    assert b"import" in sources[:100_000].tobytes()
    x, y = text.batch(sources, step=3, seed=1, rows=4, length=20)
    assert np.array_equal(x[:, 1:], y[:, :-1])
    assert np.array_equal(x, text.batch(sources, 3, 1, 4, 20)[0])
    assert not np.array_equal(x, text.batch(sources, 4, 1, 4, 20)[0])
