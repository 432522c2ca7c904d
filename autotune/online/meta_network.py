"""The meta-network predicts the gain of every candidate from one window: log(throughput / throughput of the running plan).

AutoByte (arXiv 2112.13509) describes such a network; its internals are not public. Ours is an ensemble of small MLPs
("heads") that were trained on different bootstrap samples of the same data. Each head predicts a value and a scale. The
heads disagree on inputs unlike the training data (Lakshminarayanan et al. 2017). One call evaluates all candidates: the
window's part of the first layer is the same for all of them and is computed once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from autotune.online.features import CANDIDATE_FEATURES, FEATURES_VERSION, WINDOW_FEATURES, Float32s
from autotune.online.message_layout import Floats
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import digest

NUM_HEADS = 5
HIDDEN = 64
SHIPPED = "meta.safetensors"
CARD = "meta.json"
_COLD_SCALE = 1.0
"""The scale that an untrained head predicts: off by a factor of e."""
_INPUT_SCALE = 3.0
"""Assumed standard deviation of features before training; most are logarithms of shares."""
_TOO_WIDE = 0.5
"""Spread (a factor of 1.65) from which a prediction is not used."""
_LEAST_LOG_SCALE, _MOST_LOG_SCALE = -6.0, 3.0
STATE = ("window_mean", "window_scale", "row_mean", "row_scale")
"""The tensors that are not optimized: they hold the statistics of the inputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GainEstimate:
    """Predicted gain of each candidate, log(throughput / throughput now), and its standard deviation."""

    mean: Floats
    spread: Floats

    def is_usable(self, index: int) -> bool:
        """Whether the spread of a candidate is small enough to use its prediction."""
        return bool(self.spread[index] < _TOO_WIDE)

    def pick(self, *, running: int, default: int, min_gain: float = 0.03, num_spreads: float = 1.0) -> int:
        """The candidate with the best lower bound, mean - `num_spreads` · spread, if that bound is above `min_gain`.

        Otherwise the running plan, or the default if the prediction of the running plan is not usable.
        """
        if not self.is_usable(running):
            return default
        lower = self.mean - num_spreads * self.spread
        best = int(lower.argmax())
        return best if lower[best] > math.log1p(min_gain) and self.is_usable(best) else running


class MetaNetwork:
    """The tensors of all heads, by name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    @classmethod
    def cold(cls, seed: int = 0) -> Self:
        """Untrained heads with a wide predicted scale."""
        generator = torch.Generator().manual_seed(seed)

        def drawn(num_inputs: int, num_outputs: int) -> Tensor:
            spread = math.sqrt(2 / num_inputs)
            return torch.randn(NUM_HEADS, num_inputs, num_outputs, generator=generator) * spread

        windows, rows = len(WINDOW_FEATURES), len(CANDIDATE_FEATURES)
        first = drawn(windows + rows, HIDDEN)
        last = drawn(HIDDEN, 2)
        last[:, :, 1] = 0.0
        bias = torch.zeros(NUM_HEADS, 1, 2)
        bias[:, :, 1] = math.log(_COLD_SCALE)
        return cls(
            {
                "window_mean": torch.zeros(windows),
                "window_scale": torch.full((windows,), _INPUT_SCALE),
                "row_mean": torch.zeros(rows),
                "row_scale": torch.full((rows,), _INPUT_SCALE),
                "window_first": first[:, :windows].contiguous(),
                "row_first": first[:, windows:].contiguous(),
                "first_bias": torch.zeros(NUM_HEADS, 1, HIDDEN),
                "second": drawn(HIDDEN, HIDDEN),
                "second_bias": torch.zeros(NUM_HEADS, 1, HIDDEN),
                "last": last,
                "last_bias": bias,
            }
        )

    @classmethod
    def shipped(cls) -> Self:
        """The weights of the package."""
        return cls.of_bytes((files("autotune.online") / "weights" / SHIPPED).read_bytes(), SHIPPED)

    @classmethod
    def of_bytes(cls, content: bytes, where: str) -> Self:
        """Read the output of `to_bytes`; `where` names the file in errors."""
        tensors = checked(content, where)
        return cls({name: tensor for name, tensor in tensors.items() if name in cls.cold().tensors})

    def to_bytes(self, extra: Mapping[str, Tensor] | None = None) -> bytes:
        """As safetensors, with the version and digest of the features."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in (self.tensors | dict(extra or {})).items()}
        return save(tensors, metadata=_as_metadata(features_card()))

    def copy(self) -> MetaNetwork:
        return MetaNetwork({name: tensor.detach().clone() for name, tensor in self.tensors.items()})

    @torch.inference_mode()
    def predict(self, window: Float32s, rows: Float32s) -> GainEstimate:
        """The gains of all candidates of a window."""
        value, log_scale = self.forward(torch.from_numpy(window)[None, :], torch.from_numpy(rows))
        # The variance of a Laplace distribution is 2·scale².
        variance = value.var(dim=0, correction=0) + (2 * (2 * log_scale).exp()).mean(dim=0)
        return GainEstimate(mean=value.mean(dim=0).double().numpy(), spread=variance.sqrt().double().numpy())

    def forward(self, window: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Values and log scales, each of shape (heads, rows). `window`: one for all rows, or one per row."""
        held = self.tensors
        window = (window - held["window_mean"]) / held["window_scale"]
        rows = (rows - held["row_mean"]) / held["row_scale"]
        shared = window @ held["window_first"] + held["first_bias"]
        hidden = (rows @ held["row_first"] + shared).relu()
        hidden = torch.baddbmm(held["second_bias"], hidden, held["second"]).relu()
        both = torch.baddbmm(held["last_bias"], hidden, held["last"])
        return both[:, :, 0], both[:, :, 1].clamp(_LEAST_LOG_SCALE, _MOST_LOG_SCALE)


def features_card() -> dict[str, str]:
    """The version and digest of the features; weights and code must agree on them."""
    return {"features_version": str(FEATURES_VERSION), "features": digest([WINDOW_FEATURES, CANDIDATE_FEATURES])}


def _as_metadata(card: Mapping[str, str]) -> dict[str, str]:
    """One entry, since safetensors writes several in any order: equal weights must make equal files."""
    return {"card": json.dumps(card, sort_keys=True)}


def checked(content: bytes, where: str) -> dict[str, Tensor]:
    """The tensors of a file, after a check that it was made for these features."""
    try:
        tensors = load(content)
        found = _metadata(content)
    except (SafetensorError, ValueError) as error:
        raise SpecError(f"{where} is no safetensors file ({error}): create it with `nox -s pretrain`") from error
    if found != features_card() or set(MetaNetwork.cold().tensors) - set(tensors):
        raise SpecError(
            f"{where} holds a meta-network for features {found} but this version has {features_card()}: "
            "delete it to start from the shipped weights, or train new ones with `nox -s pretrain`"
        )
    return tensors


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of the header, which `safetensors.torch.load` does not return."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    found: dict[str, str] = json.loads(header.get("__metadata__", {}).get("card", "{}"))
    return found
