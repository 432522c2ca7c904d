"""BatchNorm layers with local statistics (of their own rank), in a step in which the rank has no samples.

The rank still runs forward and backward, on samples of weight 0, which also update the running statistics. These are
therefore saved before such a batch and restored before the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from autotune.runtime.train.sync_batch_norm import batch_norms
from autotune.workloads.errors import SpecError

NORM_SAMPLES = 2
"""BatchNorm needs more than one value per channel."""


def check_norms(num_layers: int, samples: Sequence[int]) -> None:
    """Refuse splits with which layers with local statistics cannot train."""
    if num_layers and len(samples) > 1 and min(samples) < NORM_SAMPLES:
        raise SpecError(
            f"the plan gives a rank one sample ({list(samples)}) and the model has BatchNorm layers, which need two: pass "
            "sync_norm=True, or sweep with a workload whose min_samples is 2"
        )


class LocalNorms:
    """The running statistics of a model's BatchNorm layers."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = batch_norms(model)
        self._saved: list[tuple[Tensor, Tensor]] = []

    def before_batch(self, *, counts: bool) -> None:
        """Called before each batch. `counts`: whether its samples have weight."""
        for buffer, saved in self._saved:
            buffer.copy_(saved)
        buffers = [] if counts else [buffer for layer in self._layers for buffer in layer.buffers()]
        self._saved = [(buffer, buffer.clone()) for buffer in buffers]
