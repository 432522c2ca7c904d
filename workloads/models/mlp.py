"""A stack of Linear and ReLU layers: all parameters, little compute, so communication dominates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from torch import nn

from autotune.workloads.models.base import ImageSize, SupervisedWorkload, chosen, image_workload, init_classifier


@dataclass(frozen=True, kw_only=True, slots=True)
class MlpSize(ImageSize):
    """One row of the table of sizes."""

    hidden: tuple[int, ...]
    """Width of each hidden layer."""


SIZES = {
    "tiny": MlpSize(image=(1, 8, 8), hidden=(32, 32)),
    "small": MlpSize(image=(1, 16, 16), hidden=(512,) * 4),
    "large": MlpSize(image=(1, 32, 32), hidden=(4096,) * 4, global_batch=128),
}


def mlp(size: MlpSize) -> nn.Sequential:
    """Flatten, then Linear and ReLU alternately; the last layer gives the logits."""
    layers: list[nn.Module] = [nn.Flatten()]
    widths = (math.prod(size.image), *size.hidden)
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], size.num_classes))
    init_classifier(model)
    return model


def workload(
    *, size: str = "small", global_batch: int = 0, lr: float = 0.02, dtype: str = "float32"
) -> SupervisedWorkload:
    """The MLP on synthetic images. `global_batch` 0 is the size's own."""
    row = chosen("size", size, SIZES)
    return image_workload(f"mlp-{size}", row, partial(mlp, row), global_batch=global_batch, lr=lr, dtype=dtype)
