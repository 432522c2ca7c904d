"""What encoding and decoding a gradient costs on this rank, with the codecs and the device that training uses.

Gradients are float32, of several sizes. Codecs and sizes take turns, so that whatever disturbs the machine disturbs all of
them, and the median over the rounds counts. The wire tensor is made anew each time, as the reducer does. All ranks
measure at the same time, as they encode at the same time in training.

Codecs are not paced: of an emulated device, what they cost on this machine is measured. In training a paced device's next
sleep is shorter by what was encoded before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

import torch
from torch import Tensor

from autotune.runtime.codec import Codec, make_codec
from workloads.plan import MIB

ELEMENT_BYTES = torch.float32.itemsize
SMALLEST_BYTES = MIB // 16
LARGEST_BYTES = 64 * MIB
_LEAST_RANGE_BYTES = MIB
"""A smaller model is measured up to here all the same: a line needs sizes that differ."""
_GROWTH = 4
_ROUNDS = 5
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


def measure_codecs(
    names: Iterable[str],
    sizes: Sequence[int],
    device: torch.device,
    *,
    codec_of: Callable[[str], Codec] = make_codec,
    clock: Clock = time.perf_counter,
) -> dict[str, list[CodecSample]]:
    """Each codec at each size."""
    generator = torch.Generator().manual_seed(0)
    gradient = (torch.randn(max(sizes) // ELEMENT_BYTES, generator=generator) * _GRADIENT_SCALE).to(device)
    probes = {name: _CodecProbe(codec_of(name), _waiting_for(device, clock)) for name in names}
    cases = [(name, size, gradient[: size // ELEMENT_BYTES]) for name, size in product(probes, sizes)]
    repeats = {(name, size): _repeats(*probes[name].seconds(flat)) for name, size, flat in cases}
    times: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in repeats}
    for _ in range(_ROUNDS):
        for name, size, flat in cases:
            times[name, size].append(probes[name].seconds(flat, *repeats[name, size]))
    return {name: [_typical(size, times[name, size]) for size in sizes] for name in probes}


class _CodecProbe:
    """Times one codec."""

    def __init__(self, codec: Codec, now: Clock) -> None:
        self._codec, self._now = codec, now

    def seconds(self, flat: Tensor, num_encodes: int = 1, num_decodes: int = 1) -> tuple[float, float]:
        """Of one encode and one decode, when that many follow each other."""
        wire = self._codec.encode(flat)
        begun_s = self._now()
        for _ in range(num_encodes):
            wire = self._codec.encode(flat)
        encoded_s = self._now()
        for _ in range(num_decodes):
            self._codec.decode(wire, flat)
        return (encoded_s - begun_s) / num_encodes, (self._now() - encoded_s) / num_decodes


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
