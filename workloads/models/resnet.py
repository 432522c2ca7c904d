"""ResNet: much compute per parameter and many small layers, so communication hides easily but overhead shows.

He et al., "Deep Residual Learning for Image Recognition" (2016): `small` and `large` have the layers of ResNet-18,
`small` an eighth of its width. GroupNorm (Wu and He, 2018) is the default, because BatchNorm's statistics depend on how
a global batch is divided among ranks, unless they are synchronised, and then training with uneven batches cannot equal plain
training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from autotune.workloads.models.base import ImageSize, SupervisedWorkload, chosen, image_workload, init_classifier

Norm = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetSize(ImageSize):
    """One row of the table of sizes."""

    stages: tuple[tuple[int, int], ...]
    """Channels and number of blocks of each stage; every stage but the first halves the image."""
    num_groups: int
    """Groups of the GroupNorm layers; divides the channels of every stage."""
    large_stem: bool = False
    """A 7x7 convolution and a pooling layer as stem, for large images, instead of a 3x3 convolution."""


SIZES = {
    "tiny": ResNetSize(image=(3, 16, 16), stages=((12, 1), (24, 1), (48, 1)), num_groups=4),
    "small": ResNetSize(image=(3, 32, 32), stages=((8, 2), (16, 2), (32, 2), (64, 2)), num_groups=4),
    "large": ResNetSize(
        image=(3, 224, 224),
        stages=((64, 2), (128, 2), (256, 2), (512, 2)),
        num_groups=32,
        large_stem=True,
        num_classes=1000,
        num_samples=128,
        global_batch=128,
    ),
}


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int, norm: Norm) -> None:
        """`stride` 2 halves the image."""
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False),
            norm(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            convolution = nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, norm(channels))
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """relu(branch + shortcut)."""
        outputs: Tensor = self.relu(self.branch(inputs) + self.shortcut(inputs))
        return outputs


def resnet(size: ResNetSize, norm: Norm) -> nn.Sequential:
    """Stem, stages of blocks, average over the image, classifier; one flat sequence of blocks."""
    channels, kernel = size.stages[0][0], 7 if size.large_stem else 3
    stem = nn.Conv2d(size.image[0], channels, kernel_size=kernel, stride=2, padding=kernel // 2, bias=False)
    layers: list[nn.Module] = [stem, norm(channels), nn.ReLU()]
    if size.large_stem:
        layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
    for stage, (out_channels, num_blocks) in enumerate(size.stages):
        for block in range(num_blocks):
            layers.append(Block(channels, out_channels, 2 if stage > 0 and block == 0 else 1, norm))
            channels = out_channels
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size.num_classes))
    init_classifier(model)
    return model


def workload(
    *, size: str = "small", norm: str = "group", global_batch: int = 0, lr: float = 0.05, dtype: str = "float32"
) -> SupervisedWorkload:
    """ResNet on synthetic images. `norm` is "group", "batch", or "sync": "batch" with statistics over all ranks.

    `global_batch` 0 is the size's own.
    """
    row = chosen("size", size, SIZES)
    norms: dict[str, Norm] = {
        "group": partial(nn.GroupNorm, row.num_groups),
        "batch": nn.BatchNorm2d,
        "sync": nn.BatchNorm2d,
    }
    build_model = partial(resnet, row, chosen("norm", norm, norms))
    made = image_workload(f"resnet-{size}", row, build_model, global_batch=global_batch, lr=lr, dtype=dtype)
    return replace(made, min_samples=2 if norm == "batch" else 1, sync_norm=norm == "sync")
