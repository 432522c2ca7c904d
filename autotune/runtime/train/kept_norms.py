"""BatchNorm layers that take statistics of their own rank, in a step in which the rank has no samples.

The rank still runs forward and backward, on samples that do not count. Running statistics would take them in; so they are put
back before the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from autotune.runtime.train.sync_batch_norm import batch_norms
from autotune.workloads.errors import SpecError

NORM_SAMPLES = 2
"""BatchNorm needs more than one value per channel."""


def check_norms(num_layers: int, samples: Sequence[int]) -> None:
    """Refuse splits with which layers that take statistics of their own rank cannot train."""
    if num_layers and len(samples) > 1 and min(samples) < NORM_SAMPLES:
        raise SpecError(
            f"the plan gives a rank one sample ({list(samples)}) and the model has BatchNorm layers, which need two: pass "
            "sync_norm=True, or sweep with a workload whose min_samples is 2"
        )


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
