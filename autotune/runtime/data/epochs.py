"""Shared by both kinds of data sets: the batch of a rank, and the count of epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """One rank's batch of one step."""

    batch: Any
    weight: float
    """The weight of its mean loss in that of the whole batch; 0 for a filler batch. The weights of all ranks sum to 1."""
    step: int
    """Counted over all epochs."""
    num_samples: int
    """Samples of this rank, without those of weight 0."""


class EpochCount:
    """The epoch of an iteration: the next one, unless the script gives it."""

    def __init__(self) -> None:
        self._begun = -1
        self._resumed: tuple[int, int] | None = None

    def begin(self, epoch: int | None) -> tuple[int, int | None]:
        """The epoch, and the step to resume at if a checkpoint was made in it. An epoch that is left early counts too."""
        if epoch is not None and epoch < 0:
            raise SpecError(f"epoch is {epoch}: epochs are counted from 0")
        resumed, self._resumed = self._resumed, None
        if epoch is None:
            epoch = self._begun + 1 if resumed is None else resumed[0]
        self._begun = epoch
        return epoch, resumed[1] if resumed is not None and resumed[0] == epoch else None

    def resume(self, epoch: int, next_step: int) -> None:
        """The next iteration resumes there."""
        self._resumed = (epoch, next_step)
