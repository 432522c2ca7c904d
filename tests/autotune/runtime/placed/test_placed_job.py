"""Random groups of ops on random ranks with random shares give the gradients of the whole model."""

from __future__ import annotations

import random
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.runtime.placed.batch_cut import BatchCut
from autotune.runtime.placed.placed_job import placed_job, trace_workload
from autotune.workloads.capture import capture
from autotune.workloads.errors import SpecError
from autotune.workloads.models import gpt, mlp, resnet, vgg
from autotune.workloads.plan import BatchPlan, Plan
from autotune.workloads.plan.op_groups import OpGroup, PlacementPlan
from tests.autotune.runtime.placed.placements import Case, Placed, run
from tests.autotune.runtime.placed.reference import TOLERANCE, batch_of, reference, relative_error, seeded

BATCH = 24


def costs(workload):
    model = seeded(workload)
    return capture(model, lambda count: workload.loss(model, batch_of(workload, count)))


class TwoBranches(nn.Module):
    """Two towers whose outputs are joined, and an output that is a table."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))
        self.right = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(16, 4)

    def forward(self, *, inputs: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"logits": self.head(torch.cat([self.left(inputs) * scale, self.right(inputs)], dim=1))}


class Experts(nn.Module):
    """A mixture of experts: which rows an expert sees depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.gate = nn.Linear(8, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.inside(inputs)
        weights = self.gate(hidden).softmax(-1)
        chosen, out = weights.argmax(-1), torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(hidden[rows]) * weights[rows, number : number + 1])
        return {"logits": self.head(hidden + out)}


class Encoder(nn.Module):
    """In the style of Hugging Face: keyword arguments, a mask, blocks that compute between their children, pooled output."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(6, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=attention_mask == 0)
        pooled = (hidden * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return {"logits": self.head(pooled)}


def table_workload(build, arguments, features, dtype) -> SimpleNamespace:
    """A workload whose model has an output that is a table."""
    generator = torch.Generator().manual_seed(1)
    inputs = features(generator)
    inputs = tuple(one.to(dtype) if one.is_floating_point() else one for one in inputs)
    targets = torch.randint(4, (64,), generator=generator)

    def loss(model, batch):
        *given, wanted = batch
        return nn.functional.cross_entropy(model(**dict(zip(arguments, given, strict=True)))["logits"], wanted)

    return SimpleNamespace(
        name=build.__name__,
        global_batch=BATCH,
        min_samples=1,
        dtype=dtype,
        model=lambda: build().to(dtype),
        dataset=lambda: TensorDataset(*inputs, targets),
        loss=loss,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )


def rows_of(generator):
    return (torch.randn(64, 8, generator=generator),)


def sentences(generator):
    lengths = torch.randint(2, 7, (64, 1), generator=generator)
    return torch.randint(20, (64, 6), generator=generator), (torch.arange(6) < lengths).float()


WORKLOADS = {
    "mlp": lambda dtype: mlp.workload(size="tiny", dtype=name_of(dtype), global_batch=BATCH),
    "vgg": lambda dtype: vgg.workload(size="tiny", dtype=name_of(dtype), global_batch=BATCH),
    "resnet": lambda dtype: resnet.workload(size="tiny", dtype=name_of(dtype), global_batch=BATCH),
    "gpt": lambda dtype: gpt.workload(size="tiny", dtype=name_of(dtype), global_batch=BATCH),
    "branches": lambda dtype: table_workload(TwoBranches, ("inputs",), rows_of, dtype),
    "experts": lambda dtype: table_workload(Experts, ("inputs",), rows_of, dtype),
    "encoder": lambda dtype: table_workload(Encoder, ("input_ids", "attention_mask"), sentences, dtype),
}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).partition(".")[2]


def random_shares(generator: random.Random, num_ranks: int, micro_batches: int) -> tuple[int, ...]:
    """Of the batch, at least one sample of every micro-batch each."""
    cuts = sorted(generator.sample(range(1, BATCH // micro_batches), num_ranks - 1))
    return tuple((b - a) * micro_batches for a, b in zip([0, *cuts], [*cuts, BATCH // micro_batches], strict=True))


def random_placement(generator: random.Random, graph, traced, num_ranks: int) -> PlacementPlan:
    number, micro_batches = generator.randint(1, 5), generator.choice([1, 1, 2, 4])
    group_of = {op.name: generator.randrange(number) for op in graph.ops}
    for together in traced.operations.bound_ops:
        group_of |= dict.fromkeys(together, generator.randrange(number))
    groups = []
    for group in sorted(set(group_of.values())):
        ranks = tuple(generator.sample(range(num_ranks), generator.randint(1, min(num_ranks, BATCH // micro_batches))))
        ops = tuple(index for index, op in enumerate(graph.ops) if group_of[op.name] == group)
        groups.append(OpGroup(ops=ops, ranks=ranks, samples=random_shares(generator, len(ranks), micro_batches)))
    return PlacementPlan(groups=tuple(groups), micro_batches=micro_batches)


def plan_of(placement: PlacementPlan, num_ranks: int) -> Plan:
    return Plan(batch=BatchPlan(samples=placement.most_samples(num_ranks)), placement=placement)


@cache
def traced_workload(name: str, dtype: torch.dtype):
    workload = WORKLOADS[name](dtype)
    graph = costs(workload)
    return workload, graph, trace_workload(workload, seeded(workload), graph)


def check(name: str, dtype: torch.dtype, seed: int) -> None:
    generator = random.Random(f"{name}/{seed}")
    (workload, graph, traced), num_ranks = traced_workload(name, dtype), generator.randint(2, 6)
    model = seeded(workload)
    placement = random_placement(generator, graph, traced, num_ranks)
    job = placed_job(workload, plan_of(placement, num_ranks), graph, traced)
    batch, cut = batch_of(workload, BATCH), BatchCut(samples=job.samples)
    expected, total = reference(model, workload.loss, batch, BatchCut(samples=((BATCH,),)))
    placed = Placed(graph=job.table.graph, assemble=job.assemble)
    ran = run(Case(placed=placed, model=model, table=job.table, batch=batch, cut=cut), num_steps=2)
    assert relative_error(ran.gradients(), expected) < TOLERANCE[dtype]
    assert ran.loss == pytest.approx(total)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("resnet", "vgg") else ()) for name in WORKLOADS]
)
def test_random_placements_are_exact(name: str) -> None:
    check(name, torch.float64, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_two_hundred_random_placements_are_exact(name: str, dtype: torch.dtype) -> None:
    for seed in range(1, 16):
        check(name, dtype, seed)


def test_ops_that_exchange_what_cannot_be_sent_stay_together() -> None:
    workload = WORKLOADS["experts"](torch.float64)
    graph, model = costs(workload), seeded(workload)
    traced = trace_workload(workload, model, graph)
    (together,) = traced.operations.bound_ops
    assert {"(model)", "experts.0", "experts.1", "experts.2"} <= together
    groups = tuple(
        OpGroup(
            ops=tuple(i for i, op in enumerate(graph.ops) if (op.name == "experts.0") == first),
            ranks=(0,),
            samples=(BATCH,),
        )
        for first in (True, False)
    )
    with pytest.raises(SpecError, match="put them into one group"):
        placed_job(workload, plan_of(PlacementPlan(groups=groups), 1), graph, traced)
