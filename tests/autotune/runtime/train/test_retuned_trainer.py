"""Plans that change during training: the result is that of plain training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from autotune.profilers.step_stats import StepRow
from autotune.results.store.decision import COMPUTE, LOOK, Decision
from autotune.runtime.control.step_directives import StepCoordinator
from autotune.runtime.train.retuned_trainer import RetunedTrainer
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.runtime.transport.wrapped_group import WrappedGroup
from autotune.workloads.cluster import Device
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from autotune.workloads.registry import load_workload
from tests.gloo_ranks import on_ranks, rank_network

NUM_STEPS = 14
TOTAL = load_workload("mlp-tiny", {}).global_batch
FIRST = Plan(batch=BatchPlan(samples=(TOTAL // 2, TOTAL - TOTAL // 2)), comm=CommPlan(bucket_bytes=4096))
CROSS_STEP = CommPlan(reducer="scheduled", partition_bytes=3000, credit_bytes=9000, crosses_steps=True)


def uneven(plan: Plan, first: int) -> Plan:
    return replace(plan, batch=BatchPlan(samples=(first, TOTAL - first)))


SCRIPT = {
    2: uneven(FIRST, 3),
    4: replace(uneven(FIRST, 3), comm=CROSS_STEP),
    7: replace(uneven(FIRST, TOTAL - 1), comm=CROSS_STEP),
    8: replace(uneven(FIRST, 5), comm=replace(CROSS_STEP, partition_bytes=700), compression=CompressionPlan()),
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
    probes: list[tuple[float, ...]] | None = None,
) -> tuple[Tensor, list[int]]:
    rank_context = RankContext(
        rank=group.rank(),
        device=Device(name="cpu"),
        torch_device=torch.device("cpu"),
        timeout_s=20,
        network=rank_network(),
    )
    trainer = Trainer(WORKLOAD, FIRST, group, rank_context, seed=3)  # type: ignore[arg-type]
    counts = []
    with ExitStack() as leaving:
        stepper: Trainer | RetunedTrainer = trainer
        if decide is not None:
            coordinator = StepCoordinator(rank_network(), decide if group.rank() == 0 else None, timeout_s=20)
            representatives = range(group.size()) if probes is not None else ()
            stepper = RetunedTrainer(trainer, coordinator, group_for or (lambda _plan: group), representatives)
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
    retuned = on_ranks(2, lambda group: trained(group, by_script))
    for (expected, _), (found, counts) in zip(plain, retuned, strict=True):
        assert float((found - expected).norm() / expected.norm()) < 1e-10
        assert len(counts) == NUM_STEPS
    firsts = [count for _, (_, counts) in zip(plain, retuned, strict=True) for count in counts][:NUM_STEPS]
    assert firsts == [TOTAL // 2] * 2 + [3] * 5 + [TOTAL - 1] + [5] * 2 + [6] * 2 + [2] * 2


SHARDS = replace(FIRST, comm=CommPlan(bucket_bytes=4096, collective="shards"))
OWNERS = {
    3: SHARDS.comm,
    5: replace(SHARDS.comm, shares=(0.0, 1.0)),
    7: replace(CROSS_STEP, collective="shards", shares=(0.75, 0.25)),
    9: replace(CROSS_STEP, collective="shards", shares=(0.125, 0.875)),
    12: replace(CROSS_STEP, collective="shards"),
}
"""Owner shares change with bucketed plans, with cross-step overlap, and back."""


def test_owner_shares_change_during_training_and_the_result_is_plain_training() -> None:
    probes: list[tuple[float, ...]] = []

    def decide(row: StepRow) -> Decision | None:
        if row.arrivals is not None:
            probes.extend(row.arrivals)
        step, comm = row.step + 1, OWNERS.get(row.step + 1)
        if step in (4, 10):  # a link probe with a bucketed plan, and one while partitions of a step are in flight
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
            return trained(group, decide, group_for, probes)
        finally:
            shards.close().join(timeout=20)

    plain = on_ranks(2, lambda group: trained(group, None))
    for (expected, _), (found, counts) in zip(plain, on_ranks(2, run), strict=True):
        assert float((found - expected).norm() / expected.norm()) < 1e-10
        assert len(counts) == NUM_STEPS
    assert len(probes) == 4
    assert all(speed > 0 for found in probes for speed in found)


class Counting(WrappedGroup):
    """Counts the all-reduces that were posted."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner)
        self.num_posted = 0

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        self.num_posted += 1
        assert self._inner is not None
        return self._inner.allreduce(tensors, opts)


@pytest.mark.parametrize(("comm", "is_posted"), [(FIRST.comm, True), (replace(CROSS_STEP, crosses_steps=False), False)])
def test_ranks_report_after_posting_their_gradients_unless_the_backward_pass_waits_for_them(
    comm: CommPlan, is_posted: bool
) -> None:
    """Before its gradients, a report would delay the last of them; after such a backward pass it would be too late."""

    def run(group: dist.ProcessGroup) -> tuple[list[int], int]:
        counting, reported = Counting(group), []
        rank_context = RankContext(
            rank=group.rank(),
            device=Device(name="cpu"),
            torch_device=torch.device("cpu"),
            timeout_s=20,
            network=rank_network(),
        )
        trainer = Trainer(WORKLOAD, replace(FIRST, comm=comm), counting, rank_context, seed=3)  # type: ignore[arg-type]
        trainer.on_computed = lambda _: partial(reported.append, counting.num_posted)
        counting.num_posted = 0
        trainer.step()
        num_posted = counting.num_posted
        trainer.close()
        return reported, num_posted

    for found in on_ranks(2, run):
        reported, num_posted = found
        assert num_posted > 1
        assert len(reported) == 1
        assert (reported[0] == num_posted) is is_posted
