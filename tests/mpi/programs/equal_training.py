"""Run by mpirun: parameters after scheduled training against plain training of one process on the whole batch.

`python equal_training.py STEPS DTYPE MODEL…|quick`; prints one JSON line per case from rank 0. In float32 the yardstick is how far
plain trainings that only round differently are from each other: ranks take each other's samples, are added the other way round,
gradients are weighted instead of losses, or moved by a unit in the last place here and there. Some training is chaotic, so one
pair says little: the largest of twelve counts.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from autotune.runtime.control.mpi import Control
from autotune.runtime.control.start import start_control
from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from autotune.workloads.registry import load_workload
from autotune.workloads.split import bounds, proportional

NUM_STEPS, DTYPE, MODELS = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
NUM_BUFFERS = 10
"""Fusion buffers of a model, about."""
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "momentum": lambda p: SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: Adam(p, lr=1e-3),
    "adamw": lambda p: AdamW(p, lr=1e-3, weight_decay=0.05),
    "rmsprop": lambda p: RMSprop(p, lr=1e-4),
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "overlap": {},
    "barrier, first come": {"crosses_steps": False, "priority": "fifo"},
    "fixed order": {"crosses_steps": False, "priority": "fifo", "credit_bytes": 2**40},
    "shards": {"collective": "shards"},
    "server": {"collective": "server"},
    "mpi": {"transport": "mpi"},
    "factors": {"factors": True},
}


class Tied(nn.Module):
    """Attention whose out_proj is never called, and an output layer that is the embedding again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.norm(x + self.down(self.up(x).relu()))
        return nn.functional.linear(x, self.embed.weight)


class TiedJob:
    """Predict the same token."""

    global_batch = 16

    def model(self) -> nn.Module:
        return Tied().to(getattr(torch, DTYPE))

    def dataset(self) -> Any:
        tokens = torch.randint(0, 32, (512, 6), generator=torch.Generator().manual_seed(1))
        return torch.utils.data.TensorDataset(tokens, tokens.roll(1, 1))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


JOBS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: load_workload("mlp-tiny", {"dtype": DTYPE}),
    "tied": TiedJob,
    "gpt": lambda: load_workload("gpt-tiny", {"dtype": DTYPE}),
    "resnet": lambda: load_workload("resnet-tiny", {"dtype": DTYPE}),
}


def rows(job: Any, dataset: Any, step: int) -> Any:
    size = len(dataset)
    return dataset[torch.arange(step * job.global_batch, (step + 1) * job.global_batch) % size]


def rows_of(batch: Any, start: int, count: int) -> Any:
    return tuple(tensor[start : start + count] for tensor in batch)


def train(made: tuple[nn.Module, Optimizer], gradients: Callable[[nn.Module, int], None]) -> nn.Module:
    """NUM_STEPS with an lr schedule; `gradients` leaves those of a step."""
    model, optimizer = made
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        gradients(model, step)
        optimizer.step()
        schedule.step()
    return model


def fresh(job: Any, optimizer_name: str) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(5)
    model = job.model()
    return model, OPTIMIZERS[optimizer_name](model.parameters())


@dataclass(frozen=True)
class Rounding:
    """How a plain training computes what mathematically is the same."""

    permuted: bool = False
    """Ranks take each other's samples."""
    backwards: bool = False
    """The last rank's gradient is the first to be added to."""
    weights_gradients: bool = False
    nudges: int = 0
    """A seed: gradients are moved by a unit in the last place, or not, at random."""


ROUNDINGS = (
    Rounding(backwards=True, weights_gradients=True),
    Rounding(permuted=True),
    Rounding(permuted=True, backwards=True),
    Rounding(permuted=True, weights_gradients=True),
    *(Rounding(nudges=seed) for seed in range(1, 9)),
)


def plain(job: Any, optimizer_name: str, samples: tuple[int, ...], rounding: Rounding) -> nn.Module:
    """One process; the gradient is the sum of those of the ranks' samples."""
    dataset = job.dataset()
    sizes = samples[::-1] if rounding.permuted else samples
    generator = torch.Generator().manual_seed(rounding.nudges)
    ranks = range(len(sizes))

    def gradients(model: nn.Module, step: int) -> None:
        batch = rows(job, dataset, step)
        for rank in reversed(ranks) if rounding.backwards else ranks:
            loss = job.loss(model, rows_of(batch, sum(sizes[:rank]), sizes[rank]))
            weight = sizes[rank] / job.global_batch
            if rounding.weights_gradients:
                add_weighted(model, loss, weight)
            else:
                (loss * weight).backward()
        if rounding.nudges:
            nudge(model, generator)

    return train(fresh(job, optimizer_name), gradients)


def add_weighted(model: nn.Module, loss: Tensor, weight: float) -> None:
    """The loss's gradients, weighted after they were computed, to those there are."""
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        weighted = gradient * weight
        parameter.grad = weighted if parameter.grad is None else parameter.grad + weighted


def nudge(model: nn.Module, generator: torch.Generator) -> None:
    for parameter in model.parameters():
        moved = torch.randint(-1, 2, parameter.shape, generator=generator) * torch.finfo(parameter.dtype).eps
        parameter.grad *= 1 + moved


def scheduled(job: Any, optimizer_name: str, plan: Plan, groups: Groups, control: Control) -> nn.Module:
    rank = control.rank
    dataset, samples, comm = job.dataset(), plan.batch.samples, plan.comm
    with groups.open(comm.transport, collective=comm.collective, servers=comm.servers, timeout_s=60) as group:
        made = fresh(job, optimizer_name)
        weight = samples[rank] / job.global_batch
        reducer = CrossStepReducer(
            *made, plan, group, ReducerSettings(weight=weight, timeout_s=60, network=control.network())
        )

        def gradients(model: nn.Module, step: int) -> None:
            batch = rows_of(rows(job, dataset, step), sum(samples[:rank]), samples[rank])
            job.loss(model, batch).backward()

        model = train(made, gradients)
        reducer.detach()
        assert reducer.barrier_reason == ("" if comm.crosses_steps else "the plan says so")
        del reducer, group
    return model


def values(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def plain_trainings(
    job: Any, optimizer_name: str, samples: tuple[int, ...], control: Control
) -> tuple[Tensor, list[Tensor]]:
    """As it is, and rounding differently, divided among the ranks; in float64 only the first."""
    wanted = (Rounding(), *ROUNDINGS) if DTYPE == "float32" else (Rounding(),)
    own = wanted[control.rank :: control.size]
    shared = control.share([values(plain(job, optimizer_name, samples, rounding)).tolist() for rounding in own])
    found = [[torch.tensor(one, dtype=torch.float64) for one in of_rank] for of_rank in shared]
    (first, *others), *more = found
    return first, [*others, *(value for shared in more for value in shared)]


def linear_layers(model: nn.Module) -> tuple[str, ...]:
    """Layers that may send sufficient factors: called as layers, with weights of their own."""
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return tuple(
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and "attention" not in name and owners[id(module.weight)] == 1
    )


def cases() -> Iterator[tuple[str, str, list[str]]]:
    """Every model with every optimizer; every configuration with one optimizer, those that affect optimizers with all."""
    if MODELS == ["quick"]:
        yield from [("mlp", "adamw", list(CONFIGURATIONS)), ("tied", "momentum", list(CONFIGURATIONS))]
        return
    for job in MODELS:
        for optimizer in OPTIMIZERS:
            yield job, optimizer, list(CONFIGURATIONS) if optimizer == "adamw" else ["overlap", "factors"]


def main() -> None:
    torch.set_num_threads(1)
    control = start_control()
    size = control.size
    groups = Groups(control, load_cluster("this-machine").for_ranks(size))
    for job_name, optimizer_name, configurations in cases():
        job = JOBS[job_name]()
        uneven = proportional(
            [1.0 / (1 + rank) for rank in range(size)], job.global_batch, bounds(size, job.global_batch)
        )
        expected, others = plain_trainings(job, optimizer_name, uneven, control)
        apart, model = sorted(distance(other, expected) for other in others), job.model()
        partition = sum(p.numel() * p.element_size() for p in model.parameters()) // NUM_BUFFERS
        for configuration in configurations:
            options = {
                "partition_bytes": partition,
                "credit_bytes": 3 * partition,
                "crosses_steps": True,
            } | CONFIGURATIONS[configuration]
            factors = linear_layers(model) if options.pop("factors", False) else ()
            if options.get("collective") == "server":
                options["servers"] = (size - 1,)
            plan = Plan(
                batch=BatchPlan(samples=uneven),
                comm=CommPlan(reducer="scheduled", **options),
                compression=CompressionPlan(factors=factors),
            )
            error = distance(values(scheduled(job, optimizer_name, plan, groups, control)), expected)
            errors = control.gather(error)
            if errors is not None:
                case = {
                    "model": job_name,
                    "optimizer": optimizer_name,
                    "configuration": configuration,
                    "ranks": size,
                    "dtype": DTYPE,
                }
                sys.stdout.write(
                    json.dumps(case | {"error": max(errors), "order": max(apart, default=0.0), "plain": apart}) + "\n"
                )
                sys.stdout.flush()
    control.share(None)


main()
