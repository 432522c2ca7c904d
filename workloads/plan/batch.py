"""The part of a plan that divides the batch."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """How the global batch is divided."""

    samples: tuple[int, ...]
    """Samples of each rank; they sum to the global batch. A rank without samples is left out (`Plan.used_ranks`)."""
    sync_norm: bool = False
    """BatchNorm layers take their statistics over the samples of all ranks, so that results do not depend on the split."""
    accumulate: int = 1
    """Without stages: the passes in which each rank takes its samples, on top of those of the workload. Gradients are
    exchanged in the last one only."""


def check_sum(samples: tuple[int, ...], global_batch: int, what: str) -> None:
    """Refuse samples that do not sum to the batch."""
    if (missing := global_batch - sum(samples)) != 0:
        change = f"add {missing} samples" if missing > 0 else f"take away {-missing} samples"
        raise SpecError(f"{what} sum to {sum(samples)} but the global batch is {global_batch}: {change}")
