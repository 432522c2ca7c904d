"""VGG: the compute is in the convolutions, the parameters are in the Linear layers behind them.

The gradients that are largest come first in backward, which is what makes the order of communication matter.
Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2015); `large` is their
configuration A (VGG-11) without dropout, so that results are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from torch import nn

from autotune.workloads.models.base import ImageSize, SupervisedWorkload, chosen, image_workload, init_classifier


@dataclass(frozen=True, kw_only=True, slots=True)
class VggSize(ImageSize):
    """One row of the table of sizes."""

    stages: tuple[tuple[int, ...], ...]
    """Output channels of the convolutions of each stage; a stage ends by halving the image."""
    hidden: tuple[int, int]
    """Width of the two Linear layers before the classifier."""


SIZES = {
    "tiny": VggSize(image=(3, 16, 16), stages=((16,), (16,)), hidden=(256, 128)),
    "small": VggSize(image=(3, 32, 32), stages=((12,), (24,), (32,)), hidden=(768, 768)),
    "large": VggSize(
        image=(3, 224, 224),
        stages=((64,), (128,), (256, 256), (512, 512), (512, 512)),
        hidden=(4096, 4096),
        num_classes=1000,
        num_samples=128,
        global_batch=128,
    ),
}


def vgg(size: VggSize) -> nn.Sequential:
    """Stages of 3x3 convolutions, each ending in a pooling layer, then the Linear layers; one flat sequence."""
    layers: list[nn.Module] = []
    channels, height, width = size.image
    for stage in size.stages:
        for out_channels in stage:
            layers += [nn.Conv2d(channels, out_channels, kernel_size=3, padding=1), nn.ReLU()]
            channels = out_channels
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    for before, after in pairwise((channels * height * width, *size.hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(size.hidden[-1], size.num_classes))
    init_classifier(model)
    return model


def workload(
    *, size: str = "small", global_batch: int = 0, lr: float = 0.005, dtype: str = "float32"
) -> SupervisedWorkload:
    """VGG on synthetic images. `global_batch` 0 is the size's own."""
    row = chosen("size", size, SIZES)
    return image_workload(f"vgg-{size}", row, partial(vgg, row), global_batch=global_batch, lr=lr, dtype=dtype)
