"""What every candidate would be worth, from what a window shows: log(its throughput / that of the plan that runs).

AutoByte (arXiv 2112.13509) has such a meta-network; its internals are not public. Ours is a small MLP with several heads,
networks of their own that learned from different draws of the same data. Each head says a value and how far off it may
be; where heads disagree the network has seen too little of the kind (Lakshminarayanan et al. 2017). All candidates are
asked in one call: the window's part of the first layer is the same for all and is multiplied once.
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

from autotune.online.features import CANDIDATE_FEATURES, FEATURES_VERSION, WINDOW_FEATURES, Singles
from autotune.online.message_layout import Floats
from autotune.workloads.errors import SpecError
from autotune.workloads.serial import digest

NUM_HEADS = 5
HIDDEN = 64
SHIPPED = "meta.safetensors"
CARD = "meta.json"
_COLD_SCALE = 1.0
"""Untrained, a head takes itself to be off by a factor of e."""
_INPUT_SCALE = 3.0
"""Of numbers before anything is known of their spread: logarithms of shares, mostly."""
_TOO_WIDE = 0.5
"""Beyond this spread (a factor of 1.65) a guess is none."""
_LEAST_LOG_SCALE, _MOST_LOG_SCALE = -6.0, 3.0
STATE = ("window_mean", "window_scale", "row_mean", "row_scale")
"""What of the tensors is not learned by steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guess:
    """Of each candidate log(throughput / throughput now), and how far off that may be."""

    mean: Floats
    spread: Floats

    def knows(self, index: int) -> bool:
        """Whether anything is known of a candidate."""
        return bool(self.spread[index] < _TOO_WIDE)

    def pick(self, *, running: int, default: int, min_gain: float = 0.03, doubt: float = 1.0) -> int:
        """The candidate to run: the best that is worth `min_gain` more than the running plan even if `doubt` spreads worse
        than guessed; otherwise the one that runs, or the default where nothing is known of what runs.
        """
        if not self.knows(running):
            return default
        surely = self.mean - doubt * self.spread
        best = int(surely.argmax())
        return best if surely[best] > math.log1p(min_gain) and self.knows(best) else running


class MetaNetwork:
    """The heads, as tensors by name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    @classmethod
    def cold(cls, seed: int = 0) -> Self:
        """Heads that have learned nothing, and say so."""
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
        """As it comes with the package."""
        return cls.of_bytes((files("autotune.online") / "weights" / SHIPPED).read_bytes(), SHIPPED)

    @classmethod
    def of_bytes(cls, content: bytes, where: str) -> Self:
        """From what `to_bytes` made; `where` names it in errors."""
        tensors = checked(content, where)
        return cls({name: tensor for name, tensor in tensors.items() if name in cls.cold().tensors})

    def to_bytes(self, extra: Mapping[str, Tensor] | None = None) -> bytes:
        """As safetensors, with the list of features that the weights belong to."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in (self.tensors | dict(extra or {})).items()}
        return save(tensors, metadata=_as_metadata(features_card()))

    def copy(self) -> MetaNetwork:
        return MetaNetwork({name: tensor.detach().clone() for name, tensor in self.tensors.items()})

    @torch.inference_mode()
    def guess(self, window: Singles, rows: Singles) -> Guess:
        """All candidates of a window at once."""
        value, log_scale = self.forward(torch.from_numpy(window)[None, :], torch.from_numpy(rows))
        # Laplace: its variance is twice the square of its scale.
        variance = value.var(dim=0, correction=0) + (2 * (2 * log_scale).exp()).mean(dim=0)
        return Guess(mean=value.mean(dim=0).double().numpy(), spread=variance.sqrt().double().numpy())

    def forward(self, window: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(heads, rows) values and logarithms of scales. `window`: one for all rows, or one each."""
        held = self.tensors
        window = (window - held["window_mean"]) / held["window_scale"]
        rows = (rows - held["row_mean"]) / held["row_scale"]
        shared = window @ held["window_first"] + held["first_bias"]
        hidden = (rows @ held["row_first"] + shared).relu()
        hidden = torch.baddbmm(held["second_bias"], hidden, held["second"]).relu()
        both = torch.baddbmm(held["last_bias"], hidden, held["last"])
        return both[:, :, 0], both[:, :, 1].clamp(_LEAST_LOG_SCALE, _MOST_LOG_SCALE)


def features_card() -> dict[str, str]:
    """What weights must agree on with the code that uses them."""
    return {"features_version": str(FEATURES_VERSION), "features": digest([WINDOW_FEATURES, CANDIDATE_FEATURES])}


def _as_metadata(card: Mapping[str, str]) -> dict[str, str]:
    """One entry: safetensors writes several in any order, and equal weights are to be equal files."""
    return {"card": json.dumps(card, sort_keys=True)}


def checked(content: bytes, where: str) -> dict[str, Tensor]:
    """The tensors of a file that was made for these features."""
    try:
        tensors = load(content)
        found = _metadata(content)
    except (SafetensorError, ValueError) as error:
        raise SpecError(f"{where} is no safetensors file ({error}): make it anew with `nox -s pretrain`") from error
    if found != features_card() or set(MetaNetwork.cold().tensors) - set(tensors):
        raise SpecError(
            f"{where} holds a meta-network for features {found} but this version has {features_card()}: "
            "delete it to start from the shipped weights, or make those anew with `nox -s pretrain`"
        )
    return tensors


def _metadata(content: bytes) -> dict[str, str]:
    """The header is JSON behind its length: safetensors' own `load` leaves it out."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + length])
    found: dict[str, str] = json.loads(header.get("__metadata__", {}).get("card", "{}"))
    return found
