"""What encoding and decoding a gradient costs on this rank, with the codecs and the device that training uses.

Gradients are float32, of several sizes, as one matrix that is nearly square. Codecs and sizes take turns, so that whatever
disturbs the machine disturbs all of them, and the median over the turns counts. The wire tensors are made anew each time, as
the reducer does. Whether ranks measure at the same time is the caller's business (`autotune.jobs.device_profile`).

A codec exchanges its rounds with itself, as the only rank of a job would: what follows the first round counts as decoding.
So what a codec must do for each further rank (with "topk", add its values) is not in the figures.

Codecs are not paced: of an emulated device, what they cost on this machine is measured. In training a paced device's next
sleep is shorter by what was encoded before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

import torch
from torch import Tensor

from autotune.runtime.codecs.factory import UnitShape, make_codec
from autotune.runtime.codecs.protocol import Codec, Round
from autotune.workloads.plan import MIB, CompressionPlan

ELEMENT_BYTES = torch.float32.itemsize
SMALLEST_BYTES = MIB // 16
LARGEST_BYTES = 64 * MIB
_LEAST_RANGE_BYTES = MIB
"""A smaller model is measured up to here all the same: a line needs sizes that differ."""
_GROWTH = 4
_TURNS = 5
_LOOP_S = 0.002
_MOST_REPEATS = 100
_GRADIENT_SCALE = 1e-3
"""Values such as gradients have: in the normal range of every codec, and none is zero."""

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecSample:
    """One codec at one size, medians."""

    num_bytes: int
    """Of the gradient, before it is encoded."""
    encode_s: float
    decode_s: float


def codec_sizes(param_bytes: int) -> list[int]:
    """By fours up to all gradients of the model at once, which no bucket exceeds."""
    largest = min(max(param_bytes, _LEAST_RANGE_BYTES), LARGEST_BYTES) // ELEMENT_BYTES * ELEMENT_BYTES
    sizes = [SMALLEST_BYTES]
    while sizes[-1] * _GROWTH < largest:
        sizes.append(sizes[-1] * _GROWTH)
    return [*sizes, largest]


def lone_codec(name: str, num_values: int) -> Codec:
    """The codec of that name with a plan's defaults, on one rank, for a matrix as square as may be and what is left over."""
    columns = max(math.isqrt(num_values), 1)
    rows, left = divmod(num_values, columns)
    return make_codec(CompressionPlan(codec=name), UnitShape(shapes=((rows, columns), (left,)), rank=0, num_ranks=1))


def measure_codecs(
    names: Iterable[str],
    sizes: Sequence[int],
    device: torch.device,
    *,
    codec_of: Callable[[str, int], Codec] = lone_codec,
    clock: Clock = time.perf_counter,
) -> dict[str, list[CodecSample]]:
    """Each codec at each size. A new codec for each turn: what all of them keep would be many times the gradients."""
    generator = torch.Generator().manual_seed(0)
    gradient = (torch.randn(max(sizes) // ELEMENT_BYTES, generator=generator) * _GRADIENT_SCALE).to(device)
    probe = _CodecProbe(gradient, _waiting_for(device, clock))
    names = list(names)
    cases = [(name, size, size // ELEMENT_BYTES) for name, size in product(names, sizes)]
    repeats = {(name, size): _repeats(*probe.seconds(codec_of(name, count), count)) for name, size, count in cases}
    times: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in repeats}
    for _ in range(_TURNS):
        for name, size, count in cases:
            times[name, size].append(probe.seconds(codec_of(name, count), count, *repeats[name, size]))
    return {name: [_typical(size, times[name, size]) for size in sizes] for name in names}


class _CodecProbe:
    """Times codecs. Results go to a place of their own: all codecs shall see the same gradient."""

    def __init__(self, gradient: Tensor, now: Clock) -> None:
        self._gradient, self._result, self._now = gradient, torch.zeros_like(gradient), now

    def seconds(self, codec: Codec, count: int, num_encodes: int = 1, num_decodes: int = 1) -> tuple[float, float]:
        """Of one encode and one whole decode of so many values, when that many follow each other."""
        flat, result = self._gradient[:count], self._result[:count]
        first = codec.encode(flat)
        begun_s = self._now()
        for _ in range(num_encodes):
            first = codec.encode(flat)
        encoded_s = self._now()
        for _ in range(num_decodes):
            _decode_alone(codec, first, result)
        return (encoded_s - begun_s) / num_encodes, (self._now() - encoded_s) / num_decodes


def _decode_alone(codec: Codec, first: Round, result: Tensor) -> None:
    """All rounds from the first on; what the only rank receives, of whatever kind the round, is what it sent."""
    following: Round | None = first
    while following is not None:
        following = codec.decode(following.tensors, result)


def _waiting_for(device: torch.device, clock: Clock) -> Clock:
    """A GPU works behind our back: wait for it before the clock is read."""
    if device.type != "cuda":
        return clock

    def now() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return now


def _repeats(encode_s: float, decode_s: float) -> tuple[int, int]:
    """So many that a loop lasts long enough to be timed."""
    encodes, decodes = (min(max(int(_LOOP_S / max(s, 1e-9)), 1), _MOST_REPEATS) for s in (encode_s, decode_s))
    return encodes, decodes


def _typical(num_bytes: int, times: Sequence[tuple[float, float]]) -> CodecSample:
    return CodecSample(
        num_bytes=num_bytes,
        encode_s=median(encode_s for encode_s, _ in times),
        decode_s=median(decode_s for _, decode_s in times),
    )
