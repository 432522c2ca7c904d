"""A real, small learning task: 1797 handwritten digits of 8x8 pixels, shipped with scikit-learn, and a small conv net.

It trains in seconds and has a test set, so it can show that tuned training still learns.
Source: scikit-learn's copy of the test part of the UCI "Optical Recognition of Handwritten Digits" data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autotune.workloads.errors import MissingDependencyError, SpecError
from autotune.workloads.models.base import (
    DATA_SEED,
    DTYPES,
    SupervisedWorkload,
    batch_or_default,
    chosen,
    init_classifier,
    momentum_sgd,
)

NUM_TRAIN = 1437
DEFAULT_BATCH = 64
_BRIGHTEST = 16.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DigitsWorkload(SupervisedWorkload):
    """A workload with a test set and an accuracy."""

    def accuracy(self, model: nn.Module) -> float:
        """Fraction of the test set that the model classifies correctly; leaves the model in the mode it was in."""
        images, labels = test_set().tensors
        parameter = next(model.parameters())
        was_training = model.training
        model.eval()
        with torch.no_grad():
            answers = model(images.to(parameter)).argmax(dim=1).cpu()
        model.train(was_training)
        return float((answers == labels).double().mean())


def digits_net() -> nn.Sequential:
    """Two convolutions, one pooling layer, two Linear layers."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    init_classifier(model)
    return model


def train_set() -> TensorDataset:
    """The first four fifths of the shuffled digits."""
    images, labels = _shuffled_digits()
    return TensorDataset(images[:NUM_TRAIN], labels[:NUM_TRAIN])


def test_set() -> TensorDataset:
    """The last fifth."""
    images, labels = _shuffled_digits()
    return TensorDataset(images[NUM_TRAIN:], labels[NUM_TRAIN:])


def _shuffled_digits() -> tuple[Tensor, Tensor]:
    """All digits in an order fixed by the seed, pixels from 0 to 1."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, loaded when used
    except ImportError as error:
        raise MissingDependencyError(
            "workload 'digits' needs scikit-learn, which is not installed: pip install 'hetero-autotune[data]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(DATA_SEED))
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / _BRIGHTEST
    return images[order], torch.tensor(labels, dtype=torch.long)[order]


def workload(*, global_batch: int = 0, lr: float = 0.05, dtype: str = "float32") -> DigitsWorkload:
    """The digits. `global_batch` 0 is 64."""
    batch = batch_or_default(global_batch, DEFAULT_BATCH)
    if batch > NUM_TRAIN:
        raise SpecError(f"global_batch is {batch} but there are {NUM_TRAIN} training digits: use at most {NUM_TRAIN}")
    return DigitsWorkload(
        name="digits",
        global_batch=batch,
        dtype=chosen("dtype", dtype, DTYPES),
        build_model=digits_net,
        build_dataset=train_set,
        build_optimizer=partial(momentum_sgd, lr=lr),
    )
