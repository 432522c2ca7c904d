"""The part of a plan that places a model: pipeline stages on sets of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from autotune.workloads.errors import SpecError
from autotune.workloads.plan.batch import check_sum
from autotune.workloads.stage_order import SCHEDULES, SEARCHED, Pass, check_order, stage_passes


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelinePlan:
    """The model cut into stages that different ranks compute, on parts of the batch that follow one another."""

    first_ops: tuple[int, ...]
    """Index of the first op of each stage; the first is 0."""
    stage_ranks: tuple[tuple[int, ...], ...]
    """The ranks of each stage: replicas that share the batch, or groups of `tensor_parallel` that share each op."""
    micro_batches: int
    schedule: str = "1f1b"
    """"gpipe", "1f1b", "zero-bubble", or "searched": the one in `order`."""
    tensor_parallel: int = 1
    order: tuple[str, ...] = ()
    """Of "searched": the passes of each stage, such as "F0 F1 B0 B1" (`autotune.workloads.stage_order`)."""

    def passes(self) -> tuple[tuple[Pass, ...], ...]:
        """Per stage: what its ranks do, in order."""
        return stage_passes(self.schedule, len(self.first_ops), self.micro_batches, self.order)

    def check(self, samples: tuple[int, ...], global_batch: int) -> None:
        """Refuse stages that do not fit the ranks, the samples or each other."""
        ranks = [rank for stage in self.stage_ranks for rank in stage]
        idle = [rank for rank in range(len(samples)) if rank not in ranks]
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(len(samples))) or any(samples[r] for r in idle):
            raise SpecError(
                f"the plan's stages hold ranks {ranks} with samples {list(samples)}: each of the {len(samples)} ranks must be in one "
                "stage, or in none and without samples"
            )
        first = self.first_ops
        if len(first) != len(self.stage_ranks) or first[0] != 0 or any(b <= a for a, b in pairwise(first)):
            raise SpecError(
                f"the plan's first_ops are {list(first)} for {len(self.stage_ranks)} stages: one per stage, rising from 0"
            )
        if self.schedule not in SCHEDULES:
            raise SpecError(f"the plan's schedule is {self.schedule!r}: it must be one of {', '.join(SCHEDULES)}")
        if (self.schedule == SEARCHED) != bool(self.order):
            raise SpecError(
                f"the plan's schedule is {self.schedule!r} with an order for {len(self.order)} stages: give an order with "
                f"{SEARCHED!r} and only with it"
            )
        degree = self.tensor_parallel
        if self.micro_batches < 1 or degree < 1 or any(len(stage) % degree for stage in self.stage_ranks):
            raise SpecError(
                f"the plan has {self.micro_batches} micro-batches and tensor_parallel {degree}: both must be at least 1, "
                "and every stage's ranks a multiple of the second"
            )
        if self.order:
            check_order(self.order, len(first), self.micro_batches)
        for number, stage in enumerate(self.stage_ranks):
            counts = tuple(samples[rank] for rank in stage[::degree])
            check_sum(counts, global_batch, f"samples of stage {number}")
            if any(count % self.micro_batches for count in counts):
                raise SpecError(
                    f"stage {number} has samples {list(counts)} in {self.micro_batches} micro-batches: each rank's must be "
                    "a multiple of it"
                )
