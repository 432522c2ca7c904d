"""What a gradient looks like on the wire. A codec that narrows also rounds; sums are then taken in the narrow type."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from workloads.errors import unknown_name


class Codec(Protocol):
    """Invariant: decode(encode(x), x) leaves in x what a receiver would see; `none` leaves x itself untouched."""

    name: str

    def encode(self, flat: Tensor) -> Tensor:
        """The tensor to be all-reduced in place of `flat`; it may be `flat` itself."""

    def decode(self, wire: Tensor, flat: Tensor) -> None:
        """Put the reduced wire tensor back into `flat`."""

    def buffer_bytes(self, flat: Tensor) -> int:
        """Memory that the wire tensor takes beside `flat`."""


class Identity:
    """Gradients as they are."""

    name = "none"

    def encode(self, flat: Tensor) -> Tensor:
        return flat

    def decode(self, wire: Tensor, flat: Tensor) -> None:
        if wire is not flat:
            flat.copy_(wire)

    def buffer_bytes(self, flat: Tensor) -> int:  # noqa: ARG002 - none: the wire tensor is `flat`
        return 0


class Cast:
    """Gradients in a narrower float type."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def encode(self, flat: Tensor) -> Tensor:
        return flat.to(self._dtype)

    def decode(self, wire: Tensor, flat: Tensor) -> None:
        flat.copy_(wire)

    def buffer_bytes(self, flat: Tensor) -> int:
        return flat.numel() * self._dtype.itemsize


def make_codec(name: str) -> Codec:
    """The codec of that name."""
    codecs: dict[str, Codec] = {
        "none": Identity(),
        "fp16": Cast("fp16", torch.float16),
        "bf16": Cast("bf16", torch.bfloat16),
    }
    if name not in codecs:
        raise unknown_name("codec", name, codecs)
    return codecs[name]
