"""A small decoder on real text, byte by byte: this project's documentation, or a file of your own.

The model is `gpt`'s; a token is a byte, so there is nothing to download. Samples are stretches of equal length that do not
overlap; the last tenth of the text is held out, and accuracy is the share of its bytes that are guessed from those before.
`workloads/texts/docs.txt` is the prose of docs/ as it once was: tables and code left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autotune.workloads.errors import SpecError
from autotune.workloads.models.base import DTYPES, SupervisedWorkload, batch_or_default, chosen
from autotune.workloads.models.gpt import GptSize, adamw, gpt

SIZE = GptSize(vocabulary=256, num_tokens=32, width=64, num_heads=4, num_blocks=2)
_HELD_OUT = 10
"""One byte in so many, at the end of the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextWorkload(SupervisedWorkload):
    """A workload with held-out text and an accuracy."""

    held_out: TensorDataset

    def accuracy(self, model: nn.Module) -> float:
        """Share of the held-out bytes that the model guesses; leaves the model in the mode it was in."""
        inputs, targets = self.held_out.tensors
        was_training = model.training
        model.eval()
        with torch.no_grad():
            guesses = model(inputs.to(next(model.parameters()).device)).argmax(dim=-1).cpu()
        model.train(was_training)
        return float((guesses == targets).double().mean())


def read_bytes(path: str) -> Tensor:
    """The file's bytes as tokens; the shipped text if no path is given."""
    try:
        raw = (
            Path(path).read_bytes()
            if path
            else resources.files("autotune.workloads").joinpath("texts/docs.txt").read_bytes()
        )
    except OSError as error:
        raise SpecError(
            f"workload 'text' cannot read {path!r}: {error.strerror}: give a text file as --set path=…"
        ) from error
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()


def stretches(tokens: Tensor) -> TensorDataset:
    """Stretches of the text and the same one byte later."""
    count = (len(tokens) - 1) // SIZE.num_tokens
    length = count * SIZE.num_tokens
    shape = count, SIZE.num_tokens
    return TensorDataset(tokens[:length].view(shape).clone(), tokens[1 : length + 1].view(shape).clone())


def workload(*, path: str = "", global_batch: int = 0, lr: float = 1e-3, dtype: str = "float32") -> TextWorkload:
    """The decoder on text. `path`: a file of your own; `global_batch` 0 is 64."""
    batch = batch_or_default(global_batch, SIZE.global_batch)
    tokens = read_bytes(path)
    last = len(tokens) - len(tokens) // _HELD_OUT
    train = stretches(tokens[:last]) if last > SIZE.num_tokens else None
    if train is None or len(train) < batch or len(tokens) - last <= SIZE.num_tokens:
        raise SpecError(
            f"global_batch is {batch} but the text of {len(tokens)} bytes has {len(train) if train else 0} samples of "
            f"{SIZE.num_tokens} to train on, and one to test on at least: use a smaller batch or a longer text"
        )
    return TextWorkload(
        name="text",
        global_batch=batch,
        dtype=chosen("dtype", dtype, DTYPES),
        build_model=partial(gpt, SIZE),
        build_dataset=lambda: train,
        build_optimizer=partial(adamw, lr=lr),
        held_out=stretches(tokens[last:]),
    )
