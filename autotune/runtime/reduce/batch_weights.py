"""The weight of a rank's gradients, batch by batch.

Taking a batch sets the weight of the backward passes that follow. If a script takes several batches before their
backward passes, all of these would have the weight of the last batch; where the weights differ this is an error.
"""

from __future__ import annotations

from autotune.workloads.errors import SpecError

NO_BATCH = (
    "no batch has come from job.batches(), so the weight of this rank's gradients is unknown: iterate over "
    "job.batches(dataset), or call job.count(samples) before each batch of a loader of your own"
)
READ_AHEAD = (
    "several batches were taken before the backward passes that use them, and they count differently (a short last batch?): "
    "take each batch from job.batches() when it is used, not a list of them"
)


class BatchWeights:
    """The weights of one rank. Used by the thread of the script only."""

    def __init__(self, weight: float | None) -> None:
        self.weight = weight
        """None: unknown."""
        self._source: object = None
        self._taken: list[float] = []
        self._ahead: list[float] = []

    def take(self, weight: float, source: object = None) -> None:
        """The script has taken the next batch of `source`."""
        if source is not self._source:
            self._taken.clear()
        self._taken.append(weight)
        self._ahead, self._source, self.weight = [], source, weight

    def begin_pass(self) -> None:
        """A backward pass of the batch that was taken last begins."""
        if self.weight is None:
            raise SpecError(NO_BATCH)
        if self._taken:
            self._ahead, self._taken = self._taken, []
        elif len(set(self._ahead)) > 1:
            raise SpecError(READ_AHEAD)
