"""Plans that change on the way: training stays what it is, whatever it goes by."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import COMPUTE, LOOK, Decision
from autotune.runtime.control.step_directives import StepCoordinator
from autotune.runtime.train.retuned_trainer import SteeredTrainer
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.runtime.transport.wrapped_group import WrappedGroup
from autotune.workloads.cluster import Device
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from autotune.workloads.registry import load_workload
from tests.gloo_ranks import on_ranks

NUM_STEPS = 14
TOTAL = load_workload("mlp-tiny", {}).global_batch
FIRST = Plan(batch=BatchPlan(samples=(TOTAL // 2, TOTAL - TOTAL // 2)), comm=CommPlan(bucket_bytes=4096))
CROSSING = CommPlan(reducer="scheduled", partition_bytes=3000, credit_bytes=9000, crosses_steps=True)


def uneven(plan: Plan, first: int) -> Plan:
    return replace(plan, batch=BatchPlan(samples=(first, TOTAL - first)))


SCRIPT = {
    2: uneven(FIRST, 3),
    4: replace(uneven(FIRST, 3), comm=CROSSING),
    7: replace(uneven(FIRST, TOTAL - 1), comm=CROSSING),
    8: replace(uneven(FIRST, 5), comm=replace(CROSSING, partition_bytes=700), compression=CompressionPlan()),
    10: replace(uneven(FIRST, 6), comm=CommPlan(reducer="ddp")),
    12: uneven(FIRST, 2),
}


def by_script(row: StepRow) -> Decision | None:
    plan = SCRIPT.get(row.step + 1)
    return None if plan is None else Decision(step=row.step + 1, plan=plan, kind=COMPUTE, reason="the script")


class SameStart:
    """A workload whose models all begin with the same values, on ranks that share one random generator."""

    def __init__(self) -> None:
        self._real = load_workload("mlp-tiny", {"dtype": "float64"})
        self._model = self._real.model()

    def model(self) -> torch.nn.Module:
        return copy.deepcopy(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def trained(
    group: dist.ProcessGroup,
    decide: Callable[[StepRow], Decision | None] | None,
    group_for: Callable[[Plan], dist.ProcessGroup] | None = None,
    looks: list[tuple[float, ...]] | None = None,
) -> tuple[Tensor, list[int]]:
    rank_context = RankContext(
        rank=group.rank(), device=Device(name="cpu"), torch_device=torch.device("cpu"), timeout_s=20
    )
    trainer = Trainer(WORKLOAD, FIRST, group, rank_context, seed=3)  # type: ignore[arg-type]
    counts = []
    with ExitStack() as leaving:
        stepper: Trainer | SteeredTrainer = trainer
        if decide is not None:
            coordinator = StepCoordinator(group, decide if group.rank() == 0 else None, timeout_s=20)
            firsts = range(group.size()) if looks is not None else ()
            stepper = SteeredTrainer(trainer, coordinator, group_for or (lambda _plan: group), firsts)
            leaving.callback(stepper.close)
        counts = [stepper.step().num_samples for _ in range(NUM_STEPS)]
        trainer.flush()
    parameters = torch.cat([parameter.detach().reshape(-1).clone() for parameter in trainer.model.parameters()])
    group.barrier(dist.BarrierOptions()).wait()
    trainer.close()
    return parameters, counts


WORKLOAD = SameStart()


def test_training_by_changing_plans_is_plain_training() -> None:
    plain = on_ranks(2, lambda group: trained(group, None))
    steered = on_ranks(2, lambda group: trained(group, by_script))
    for (expected, _), (found, counts) in zip(plain, steered, strict=True):
        assert float((found - expected).norm() / expected.norm()) < 1e-10
        assert len(counts) == NUM_STEPS
    firsts = [count for _, (_, counts) in zip(plain, steered, strict=True) for count in counts][:NUM_STEPS]
    assert firsts == [TOTAL // 2] * 2 + [3] * 5 + [TOTAL - 1] + [5] * 2 + [6] * 2 + [2] * 2


SHARDS = replace(FIRST, comm=CommPlan(bucket_bytes=4096, collective="shards"))
OWNERS = {
    3: SHARDS.comm,
    5: replace(SHARDS.comm, shares=(0.0, 1.0)),
    7: replace(CROSSING, collective="shards", shares=(0.75, 0.25)),
    9: replace(CROSSING, collective="shards", shares=(0.125, 0.875)),
    12: replace(CROSSING, collective="shards"),
}
"""Owners change between buckets, in the middle of a schedule that crosses, and back."""


def test_owners_of_shards_change_on_the_way_and_training_stays_plain_training() -> None:
    looks: list[tuple[float, ...]] = []

    def decide(row: StepRow) -> Decision | None:
        if row.arrivals is not None:
            looks.extend(row.arrivals)
        step, comm = row.step + 1, OWNERS.get(row.step + 1)
        if step in (4, 10):  # a look between buckets, and one while parts of a step are on their way
            plan = replace(FIRST, comm=OWNERS[max(at for at in OWNERS if at <= step)])
            return Decision(step=step, plan=plan, kind=LOOK, switches=False, reason="the script")
        plan = replace(uneven(FIRST, step), comm=comm) if comm is not None else None
        return None if plan is None else Decision(step=step, plan=plan, kind=COMPUTE, reason="the script")

    def run(group: dist.ProcessGroup) -> tuple[Tensor, list[int]]:
        shards = ShardGroup(group, (0.5, 0.5), chunk_bytes=512)

        def group_for(plan: Plan) -> dist.ProcessGroup:
            shards.set_owners(plan.comm.shares or (0.5, 0.5))
            return shards

        try:
            return trained(group, decide, group_for, looks)
        finally:
            shards.close().join(timeout=20)

    plain = on_ranks(2, lambda group: trained(group, None))
    for (expected, _), (found, counts) in zip(plain, on_ranks(2, run), strict=True):
        assert float((found - expected).norm() / expected.norm()) < 1e-10
        assert len(counts) == NUM_STEPS
    assert len(looks) == 4
    assert all(speed > 0 for found in looks for speed in found)


class Counting(WrappedGroup):
    """Knows how many all-reduces were posted."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner)
        self.num_posted = 0

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        self.num_posted += 1
        assert self._inner is not None
        return self._inner.allreduce(tensors, opts)


@pytest.mark.parametrize(("comm", "is_posted"), [(FIRST.comm, True), (replace(CROSSING, crosses_steps=False), False)])
def test_ranks_report_behind_their_gradients_unless_a_backward_pass_waits_for_them(
    comm: CommPlan, is_posted: bool
) -> None:
    """Sent first, a report would hold up the last gradients of every step; told after such a backward pass, it comes too late."""

    def run(group: dist.ProcessGroup) -> tuple[list[int], int]:
        counting, told = Counting(group), []
        rank_context = RankContext(
            rank=group.rank(), device=Device(name="cpu"), torch_device=torch.device("cpu"), timeout_s=20
        )
        trainer = Trainer(WORKLOAD, replace(FIRST, comm=comm), counting, rank_context, seed=3)  # type: ignore[arg-type]
        trainer.on_computed = lambda _: told.append(counting.num_posted)
        counting.num_posted = 0
        trainer.step()
        num_posted = counting.num_posted
        trainer.close()
        return told, num_posted

    for found in on_ranks(2, run):
        told, num_posted = found
        assert num_posted > 1
        assert len(told) == 1
        assert (told[0] == num_posted) is is_posted
