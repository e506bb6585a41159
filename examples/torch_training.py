r"""A PyTorch model trained with pynccl: PyTorch computes, pynccl sums the gradients.

    rank 0   rows 0..2   model.backward()  \                          /  optimizer.step()
    rank 1   rows 3..5   model.backward()   >  all-reduce in buckets  >  optimizer.step()
    rank 2   rows 6..8   model.backward()  /   (last layers first)    \  optimizer.step()

Hooks on the parameters hand over each gradient when the backward pass has made it; a bucket of them
is summed while PyTorch goes on. Beside it trains PyTorch's own DistributedDataParallel, over gloo
on the CPUs of one node, from the same weights: the losses and weights are the same. The model is on
the CPU and its gradients are copied; one on the GPU could share its memory with pynccl.

Communication of a step, for P bytes of parameters on n ranks: each sends 2 (n-1)/n P, in one
all-reduce a bucket.

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".

Needs PyTorch: pip install torch

Run: mpirun -n 4 python -m mpi4py examples/torch_training.py
"""

import datetime
import os
import pathlib
import shutil
import tempfile

import torch
import training
from mpi4py import MPI
from text import batch

from pynccl.parallel import GradientBuckets, part_of


class Model(torch.nn.Module):
    """The next byte, from the bytes before it: a transformer of PyTorch's layers."""

    def __init__(self, size):
        super().__init__()
        self.table = torch.nn.Embedding(size.vocabulary, size.width)
        self.places = torch.nn.Embedding(size.context, size.width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True,
                norm_first=True,
            )
            for _ in range(size.layers)
        )  # fmt: skip
        self.head = torch.nn.Linear(size.width, size.vocabulary)
        future = torch.nn.Transformer.generate_square_subsequent_mask(size.context)
        self.register_buffer("future", future)

    def forward(self, x):
        x = self.table(x) + self.places.weight
        for block in self.blocks:
            x = block(x, src_mask=self.future.to(x.dtype), is_causal=True)
        return self.head(x)


class SummedGradients:
    """Sums a model's gradients over the ranks as its backward pass makes them.

    The first backward pass shows in which order it makes them.
    """

    def __init__(self, comm, model):
        self.comm, self.buckets, self.order = comm, None, []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.made)

    def made(self, parameter):
        if self.buckets is None:
            self.order.append(parameter)
        else:
            self.hand_over(parameter)

    def hand_over(self, parameter):
        with self.comm.compute() as xp:
            self.buckets.add(xp.asarray(parameter.grad.numpy()))

    def wait(self):
        if self.buckets is None:
            shapes = [parameter.shape for parameter in self.order]
            dtype = str(self.order[0].dtype).removeprefix("torch.")
            self.buckets = GradientBuckets(self.comm, shapes, dtype, bucket_bytes=1 << 18)
            for parameter in self.order:
                self.hand_over(parameter)
        for parameter, total in zip(self.order, self.buckets.sums()):
            parameter.grad.copy_(torch.from_numpy(training.to_host(total)))


def new_model(args):
    torch.manual_seed(args.seed)
    return Model(training.size_of(args)).to(getattr(torch, args.dtype))


def loss_of(model, x, y):
    """The sum over these rows' bytes."""
    logits = model(torch.from_numpy(x)).flatten(0, 1)
    target = torch.from_numpy(y).long().flatten()
    return torch.nn.functional.cross_entropy(logits, target, reduction="sum")


def optimizer_of(model):
    # Larger than usual: a gradient that is zero but for rounding is to stay without effect.
    return torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)


def train(comm, text, args):
    model = new_model(args)
    optimizer, summed = optimizer_of(model), SummedGradients(comm, model)
    losses = []
    rows = part_of(args.batch, comm.rank, comm.nranks)
    for x, y in training.batches(comm, text, args):
        loss = loss_of(model, x[rows], y[rows]) / x.size
        optimizer.zero_grad()
        loss.backward()
        summed.wait()
        optimizer.step()
        losses.append(loss.item())
    sent = 2 * (comm.nranks - 1) / comm.nranks * summed.buckets.nbytes
    training.check_traffic(comm, args, {"allreduce": (summed.buckets.calls, sent)})

    theirs = train_with_ddp(comm, text, args)
    losses = training.total_losses(comm, losses)
    if comm.rank == 0:
        training.check_equal(args, losses, arrays_of(model), theirs, "gloo DDP's")
    return losses, arrays_of(model)


def train_with_ddp(comm, text, args):
    """The same by PyTorch's own means; the mean of the losses on rank 0, and the weights."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
    folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    meeting = pathlib.Path(folder) / "ranks"
    torch.distributed.init_process_group(
        "gloo", init_method=meeting.as_uri(), rank=comm.rank, world_size=comm.nranks,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(new_model(args))
    optimizer, losses = optimizer_of(model), []
    rows = part_of(args.batch, comm.rank, comm.nranks)
    for step in range(args.steps):
        x, y = batch(text, step, args.seed, args.batch, args.context)
        loss = loss_of(model, x[rows], y[rows]) / x.size
        optimizer.zero_grad()
        (loss * comm.nranks).backward()  # it averages; the parts are to be summed
        optimizer.step()
        losses.append(loss.item())
    torch.distributed.destroy_process_group()
    MPI.COMM_WORLD.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)
    return training.total_losses(comm, losses), arrays_of(model.module)


def train_alone(comm, text, args):
    model = new_model(args)
    optimizer, losses = optimizer_of(model), []
    for step in range(args.steps):
        x, y = batch(text, step, args.seed, args.batch, args.context)
        loss = loss_of(model, x, y) / x.size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, arrays_of(model)


def arrays_of(model):
    return [{name: p.detach().numpy() for name, p in model.named_parameters()}]


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = training.options("PyTorch's model, with pynccl")
    options = parser.parse_args()
    if options.load or options.save:
        parser.error("the weights of PyTorch's model are not those of the other examples")
    training.run("PyTorch and pynccl", train, options, alone=train_alone)
