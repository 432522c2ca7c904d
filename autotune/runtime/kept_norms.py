"""BatchNorm layers that take statistics of their own rank, in a step in which the rank has no samples.

The rank still runs forward and backward, on samples that do not count. Running statistics would take them in; so they are put
back before the next batch.
"""

from __future__ import annotations

from torch import Tensor, nn

from autotune.runtime.sync_batch_norm import batch_norms


class KeptNorms:
    """The statistics of a model's layers."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = batch_norms(model)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def before_batch(self, *, counts: bool) -> None:
        """A batch is about to be used, which counts or does not."""
        for buffer, kept in self._kept:
            buffer.copy_(kept)
        buffers = [] if counts else [buffer for layer in self._layers for buffer in layer.buffers()]
        self._kept = [(buffer, buffer.clone()) for buffer in buffers]
