"""What a rank's gradients count, batch by batch, and whether that is surely the batch they come from.

Taking a batch sets the weight of the backward passes that follow. A script that takes several batches first and then runs a
backward pass for each would have all of them weighted like the last; where their weights differ that is refused.
"""

from __future__ import annotations

from autotune.workloads.errors import SpecError

NO_BATCH = (
    "no batch has come from job.batches(), so what this rank's gradients count is not known: iterate over "
    "job.batches(dataset), or call job.count(samples) before each batch of a loader of your own"
)
READ_AHEAD = (
    "several batches were taken before the backward passes that use them, and they count differently (a short last batch?): "
    "take each batch from job.batches() when it is used, not a list of them"
)


class BatchWeights:
    """Of one rank."""

    def __init__(self, weight: float | None) -> None:
        self.weight = weight
        """None: not known."""
        self._source: object = None
        self._taken: list[float] = []
        self._ahead: list[float] = []

    def take(self, weight: float, source: object = None) -> None:
        """The next batch of a data set, to be used now."""
        if source is not self._source:
            self._taken.clear()
        self._taken.append(weight)
        self._ahead, self._source, self.weight = [], source, weight

    def begin_pass(self) -> None:
        """A backward pass begins, of the batch that was taken last."""
        if self.weight is None:
            raise SpecError(NO_BATCH)
        if self._taken:
            self._ahead, self._taken = self._taken, []
        elif len(set(self._ahead)) > 1:
            raise SpecError(READ_AHEAD)
