"""Every way to train on many GPUs computes what one GPU does, and sends what its formula says.

The examples themselves compare, step by step, and fail where they differ; in double precision the
difference is that of the order of sums alone.
"""

import re
import subprocess
import sys

import pytest
from helpers.launch import REPOSITORY, mpirun

EXACT = ("--steps", "6", "--dtype", "float64")


def output_of(nranks, name, *arguments):
    pytest.importorskip("tqdm", reason="needs tqdm: pip install pynccl-mpi[examples]")
    done = mpirun(nranks, f"examples/{name}", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def differences(output):
    """The largest differences of losses and of weights from one GPU's training."""
    match = re.search(r"one GPU's .* at most (\S+), the weights by (\S+) ", output)
    assert match, output
    return float(match[1]), float(match[2])


def assert_equals_one_gpu(output):
    assert max(differences(output)) < 1e-10, output
    first, last = re.search(r"loss (\S+) at the first step, (\S+) at the last", output).groups()
    assert float(last) < float(first) - 0.5


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_fully_sharded_training_equals_one_gpus(nranks):
    output = output_of(nranks, "fully_sharded.py", *EXACT)
    assert_equals_one_gpu(output)
    here, others = re.search(r"take (\d+) kB on a rank.*parallel's (\d+) kB", output).groups()
    assert int(here) < int(others)


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_tensor_parallel_training_equals_one_gpus(nranks):
    assert_equals_one_gpu(output_of(nranks, "tensor_parallel.py", *EXACT))


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_sequence_parallel_training_equals_one_gpus_and_keeps_less(nranks):
    output = output_of(nranks, "sequence_parallel.py", *EXACT)
    assert_equals_one_gpu(output)
    here, others = re.search(r"keep (\d+) kB on a rank; tensor.*'s (\d+) kB", output).groups()
    assert int(here) < int(others)


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_training_with_ring_attention_equals_one_gpus_and_keeps_less(nranks):
    output = output_of(nranks, "ring_attention.py", *EXACT)
    assert_equals_one_gpu(output)
    here, others = re.search(r"keep (\d+) kB on a rank; one GPU's (\d+) kB", output).groups()
    assert int(here) * nranks < int(others)


@pytest.mark.parametrize(
    ("nranks", "schedule"),
    [(2, "gpipe"), (2, "interleaved"), (3, "1f1b"), (3, "interleaved"), (4, "1f1b")],
)
def test_pipeline_parallel_training_equals_one_gpus(nranks, schedule):
    micro = {2: 4, 3: 6, 4: 8}[nranks]
    arguments = ("--schedule", schedule, "--micro", micro, "--batch", 13)
    assert_equals_one_gpu(output_of(nranks, "pipeline_parallel.py", *EXACT, *arguments))


def test_timeline_of_the_pipeline_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install pynccl-mpi[examples]")
    picture = tmp_path / "timeline.png"
    output_of(2, "pipeline_parallel.py", "--steps", "2", "--timeline", picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_expert_parallel_training_equals_one_gpus(nranks):
    output = output_of(nranks, "expert_parallel.py", *EXACT)
    assert_equals_one_gpu(output)
    assert float(re.search(r"dropped: (\S+)%", output)[1]) > 0


def test_the_balancing_term_evens_the_experts_load():
    def most_loaded(balance):
        arguments = ("--steps", "40", "--balance", balance)
        output = output_of(2, "expert_parallel.py", *arguments)
        return int(re.search(r"(\d+)% at the last", output)[1])

    assert most_loaded("0.1") < most_loaded("0")


@pytest.mark.parametrize(
    ("nranks", "tensor", "pipeline"),
    [(2, 1, 1), (3, 3, 1), (4, 2, 2), (4, 1, 2), (8, 2, 2)],
)
def test_training_on_any_mesh_equals_one_gpus(nranks, tensor, pipeline):
    arguments = ("--tensor", tensor, "--pipeline", pipeline, "--steps", "3")
    assert_equals_one_gpu(output_of(nranks, "mesh.py", *EXACT, *arguments))


def test_mesh_that_does_not_fit_the_ranks_is_refused():
    done = mpirun(2, "examples/mesh.py", "--tensor", "3")
    assert done.returncode != 0
    assert "0 x 1 x 3 (data, pipeline, tensor) is not 2 ranks" in done.stderr


@pytest.mark.parametrize("ngpus", [1, 3, 4])
def test_training_by_one_process_equals_one_gpus_on_every_gpu(ngpus):
    command = [sys.executable, "examples/single_process.py", "--gpus", str(ngpus), *EXACT]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_equals_one_gpu(done.stdout)
    assert done.stdout.count("losses differ by at most") == ngpus


@pytest.mark.parametrize("nranks", [2, 3])
def test_training_of_a_pytorch_model_equals_gloos_and_one_cpus(nranks):
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
    output = output_of(nranks, "torch_training.py", *EXACT)
    assert_equals_one_gpu(output)
    gloo = re.search(r"from gloo DDP's training .* at most (\S+), the weights by (\S+) ", output)
    assert max(map(float, gloo.groups())) < 1e-10


def test_training_goes_on_from_weights_that_another_scheme_saved(tmp_path):
    pytest.importorskip("safetensors", reason="needs safetensors: pip install pynccl-mpi[examples]")
    file = tmp_path / "weights.safetensors"
    saved = output_of(2, "fully_sharded.py", *EXACT, "--save", file)
    loaded = output_of(3, "tensor_parallel.py", *EXACT, "--load", file)
    assert max(differences(loaded)) < 1e-10
    last = float(re.search(r"(\S+) at the last", saved)[1])
    first = float(re.search(r"loss (\S+) at the first", loaded)[1])
    assert abs(first - last) < 1.0 < 5.8 - first


def test_examples_fail_where_training_differs_from_one_gpus():
    done = mpirun(2, "-c", WRONG)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


# Turns the gradients upside down.
WRONG = """
import sys
sys.path.insert(0, "examples")
sys.argv = ["fully_sharded.py", "--steps", "3"]
import training, fully_sharded, pynccl
from pynccl.parallel import CountedCommunicator
sharded = fully_sharded.ShardedLayers
class Wrong(sharded):
    def reduce(self, index, gradients):
        sharded.reduce(self, index, {name: array[::-1] for name, array in gradients.items()})
fully_sharded.ShardedLayers = Wrong
training.run("", fully_sharded.train, training.options("").parse_args())
"""


def test_losses_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install pynccl-mpi[examples]")
    picture = tmp_path / "losses.png"
    output_of(2, "fully_sharded.py", "--steps", "3", "--plot", picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
