"""What both kinds of data sets share: the batch that a rank is given, and epochs that count themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.workloads.errors import SpecError


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """One rank's batch of one step."""

    batch: Any
    weight: float
    """What its mean loss counts in that of the whole batch; 0 where it does not count. Those of all ranks sum to 1."""
    step: int
    """Counts on from epoch to epoch."""
    num_samples: int
    """Of this rank, those that count."""


class EpochCount:
    """Which epoch an iteration goes through: the next one, unless the script says."""

    def __init__(self) -> None:
        self._begun = -1
        self._resumed: tuple[int, int] | None = None

    def begin(self, epoch: int | None) -> tuple[int, int | None]:
        """The epoch, and the step to go on from if a checkpoint was made in it. One that is left early counts, too."""
        if epoch is not None and epoch < 0:
            raise SpecError(f"epoch is {epoch}: epochs are counted from 0")
        resumed, self._resumed = self._resumed, None
        if epoch is None:
            epoch = self._begun + 1 if resumed is None else resumed[0]
        self._begun = epoch
        return epoch, resumed[1] if resumed is not None and resumed[0] == epoch else None

    def resume(self, epoch: int, next_step: int) -> None:
        """The next iteration goes on there."""
        self._resumed = (epoch, next_step)
