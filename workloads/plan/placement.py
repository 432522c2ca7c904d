"""The part of a plan that places a model: pipeline stages on sets of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from autotune.workloads.errors import SpecError
from autotune.workloads.plan.batch import check_sum
from autotune.workloads.plan.turns import replica_passes, turns
from autotune.workloads.stage_order import SCHEDULES, SEARCHED, Pass, check_order, stage_passes

SPLIT = "split"
ROUND_ROBIN = "round-robin"
SHARING = (SPLIT, ROUND_ROBIN)
"""How replicas of a stage share the batch: each takes a part of every micro-batch, or whole micro-batches round-robin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """A part of the model on the ranks that compute it for a share of the batch. Several ranks share every op of it."""

    ranks: tuple[int, ...]
    samples: int
    """Of a step."""
    passes: tuple[Pass, ...]
    """What its ranks do, in order."""

    @property
    def degree(self) -> int:
        """Of tensor parallelism."""
        return len(self.ranks)


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
    group_sizes: tuple[tuple[int, ...], ...] = ()
    """Where degrees of tensor parallelism differ: ranks of each replica, per stage. Empty: `tensor_parallel` everywhere."""
    sharing: str = SPLIT
    """"split": replicas of a stage divide every micro-batch; "round-robin": each takes whole ones, as many as its samples."""

    def groups(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Per stage: the ranks of each replica."""
        found = []
        for stage, ranks in enumerate(self.stage_ranks):
            same = (self.tensor_parallel,) * (len(ranks) // self.tensor_parallel)
            ends = list(accumulate(self.group_sizes[stage] if self.group_sizes else same))
            found.append(tuple(ranks[first:end] for first, end in pairwise([0, *ends])))
        return tuple(found)

    def replicas(self, samples: tuple[int, ...]) -> tuple[tuple[Replica, ...], ...]:
        """Per stage. `samples`: of each rank."""
        groups = self.groups()
        if self.sharing == SPLIT:
            return tuple(
                tuple(Replica(ranks=ranks, samples=samples[ranks[0]], passes=passes) for ranks in stage)
                for stage, passes in zip(groups, self.passes(), strict=True)
            )
        takers = [turns([samples[ranks[0]] for ranks in stage], self.micro_batches) for stage in groups]
        passes_of = replica_passes(self.schedule, [len(stage) for stage in groups], takers, self.order)
        return tuple(
            tuple(
                Replica(ranks=ranks, samples=samples[ranks[0]], passes=passes)
                for ranks, passes in zip(stage, several, strict=True)
            )
            for stage, several in zip(groups, passes_of, strict=True)
        )

    def micro_samples(self, samples: tuple[int, ...]) -> tuple[float, ...]:
        """Of each rank: the samples of a pass."""
        if self.sharing == SPLIT:
            return tuple(count / self.micro_batches for count in samples)
        whole = sum(samples[ranks[0]] for ranks in self.groups()[0]) / self.micro_batches
        return tuple(whole if count else 0.0 for count in samples)

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
        self._check_groups()
        if self.order:
            check_order(self.order, len(first), self.micro_batches)
        for number, stage in enumerate(self.groups()):
            counts = tuple(samples[ranks[0]] for ranks in stage)
            check_sum(counts, global_batch, f"samples of stage {number}")
            self._check_counts(number, counts, global_batch)

    def _check_groups(self) -> None:
        sizes = self.group_sizes
        if sizes and (
            self.tensor_parallel != 1
            or [sum(stage) for stage in sizes] != [len(ranks) for ranks in self.stage_ranks]
            or any(size < 1 for stage in sizes for size in stage)
        ):
            raise SpecError(
                f"the plan's group_sizes are {[list(stage) for stage in sizes]} with tensor_parallel {self.tensor_parallel} for "
                f"stages of {[len(ranks) for ranks in self.stage_ranks]} ranks: give the sizes of each stage's replicas, which "
                "sum to its ranks, and tensor_parallel 1"
            )
        if self.sharing not in SHARING:
            raise SpecError(f"the plan's sharing is {self.sharing!r}: it must be one of {', '.join(SHARING)}")

    def _check_counts(self, stage: int, counts: tuple[int, ...], global_batch: int) -> None:
        if self.sharing == SPLIT:
            if any(count % self.micro_batches for count in counts):
                raise SpecError(
                    f"stage {stage} has samples {list(counts)} in {self.micro_batches} micro-batches: each rank's must be "
                    "a multiple of it"
                )
        elif global_batch % self.micro_batches or any(
            count < 1 or count % (global_batch // self.micro_batches) for count in counts
        ):
            raise SpecError(
                f"stage {stage} has samples {list(counts)} and takes {self.micro_batches} micro-batches of a batch of "
                f"{global_batch} round-robin: micro_batches must divide the batch, and each replica take at least one whole one"
            )
