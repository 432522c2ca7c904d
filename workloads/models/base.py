"""What the shipped workloads share: one workload type, one kind of synthetic images, one table look-up.

The images are noise around a coarse pattern per class, drawn from a fixed seed: every rank holds the same samples
without a download, and there is something to learn, so that the loss falls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

from autotune.workloads.errors import SpecError, unknown_name

DATA_SEED = 1234
DTYPES = {"float32": torch.float32, "float64": torch.float64}
_PATTERN_SIDE = 4
_PATTERN_SCALE = 0.3
_HEAD_STD = 0.01

Entry = TypeVar("Entry")


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisedWorkload:
    """Classify (inputs, targets): one target per sample, or one per token of sequences of equal length."""

    name: str
    global_batch: int
    build_model: Callable[[], nn.Module]
    build_dataset: Callable[[], TensorDataset]
    build_optimizer: Callable[[nn.Module], Optimizer]
    dtype: torch.dtype = torch.float32
    """Of the model and of the data. Both are drawn in float32 first, so that float64 starts from the same values."""
    min_samples: int = 1
    sync_norm: bool = False
    """Whether BatchNorm layers take their statistics over all ranks, whatever the plan says."""

    def model(self) -> nn.Module:
        """A freshly initialised model; the caller seeds torch first."""
        return self.build_model().to(self.dtype)

    def dataset(self) -> TensorDataset:
        """The training samples, the same at every call. Leaves torch's global generator alone."""
        tensors = self.build_dataset().tensors
        return TensorDataset(*(tensor.to(self.dtype) if tensor.is_floating_point() else tensor for tensor in tensors))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy, the mean over samples (and tokens)."""
        inputs, targets = batch
        logits: Tensor = model(inputs)
        return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())

    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer this kind of model is usually trained with."""
        return self.build_optimizer(model)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSize:
    """What a row of an image model's table of sizes begins with; the model adds its own widths."""

    image: tuple[int, int, int]
    """Channels, height, width."""
    num_classes: int = 10
    num_samples: int = 1024
    global_batch: int = 64


def chosen(what: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """The entry called `name`; a misspelt name is an error that suggests the nearest."""
    if name not in table:
        raise unknown_name(what, name, table)
    return table[name]


def batch_or_default(global_batch: int, default: int) -> int:
    """The user's global batch, or the size's own where the user gave 0."""
    if global_batch < 0:
        raise SpecError(f"global_batch is {global_batch}: it must be at least 1, or 0 for the default of {default}")
    return global_batch or default


def labelled_images(*, image: tuple[int, int, int], num_classes: int, num_samples: int) -> TensorDataset:
    """Images of (channels, height, width) with their class: the class's faint coarse pattern plus unit noise."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    channels, height, width = image
    patterns = _PATTERN_SCALE * torch.randn(num_classes, channels, _PATTERN_SIDE, _PATTERN_SIDE, generator=generator)
    labels = torch.randint(num_classes, (num_samples,), generator=generator)
    noise = torch.randn(num_samples, *image, generator=generator)
    return TensorDataset(functional.interpolate(patterns[labels], size=(height, width)) + noise, labels)


def init_classifier(model: nn.Sequential) -> None:
    """He initialisation keeps the scale of activations through a stack of ReLU layers; the last layer begins small.

    So the first loss is near ln(classes), and the first steps of a net without normalisation do not diverge.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.normal_(model[-1].get_parameter("weight"), std=_HEAD_STD)


def momentum_sgd(model: nn.Module, lr: float) -> Optimizer:
    """SGD with momentum 0.9."""
    return SGD(model.parameters(), lr=lr, momentum=0.9)


def image_workload(  # noqa: PLR0913 - the workload's own fields
    name: str, row: ImageSize, build_model: Callable[[], nn.Module], *, global_batch: int, lr: float, dtype: str
) -> SupervisedWorkload:
    """The workload that trains `build_model` on images of the row's size. Data always fill one global batch."""
    batch = batch_or_default(global_batch, row.global_batch)
    num_samples = max(row.num_samples, batch)
    return SupervisedWorkload(
        name=name,
        global_batch=batch,
        dtype=chosen("dtype", dtype, DTYPES),
        build_model=build_model,
        build_dataset=partial(labelled_images, image=row.image, num_classes=row.num_classes, num_samples=num_samples),
        build_optimizer=partial(momentum_sgd, lr=lr),
    )
