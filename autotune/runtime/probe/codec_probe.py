"""The cost of encoding and decoding a gradient on this rank, with the codecs and the device of training.

Gradients are float32, of several sizes, as one nearly square matrix. Measurements of codecs and sizes are interleaved, so
that a disturbance of the machine affects all of them; the median over the rounds counts. The wire tensors are allocated each
time, as in the reducer. The caller decides whether ranks measure at the same time (`autotune.jobs.device_profile`).

A codec exchanges its rounds with itself, as on the only rank of a job: everything after the first round counts as decoding.
The cost of each further rank (with "topk", adding its values) is not included.

Codecs are not paced: for an emulated device, their cost on this machine is measured. In training the next sleep of a paced
device is shorter by the time of encoding.
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

from autotune.runtime.codecs.factory import BufferShape, make_codec
from autotune.runtime.codecs.protocol import Codec, Round
from autotune.runtime.device import handle
from autotune.workloads.plan import MIB, CompressionPlan

ELEMENT_BYTES = torch.float32.itemsize
SMALLEST_BYTES = MIB // 16
LARGEST_BYTES = 64 * MIB
_LEAST_RANGE_BYTES = MIB
"""Smaller models are measured up to this size too: a line fit needs different sizes."""
_GROWTH = 4
_ROUNDS = 5
_LOOP_S = 0.002
_MOST_REPEATS = 100
_GRADIENT_SCALE = 1e-3
"""Typical of gradients: in the normal range of every codec, and never zero."""

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecSample:
    """One codec at one size: medians."""

    num_bytes: int
    """Of the gradient, before encoding."""
    encode_s: float
    decode_s: float


def codec_sizes(param_bytes: int) -> list[int]:
    """Sizes in steps of a factor of four, up to all gradients of the model at once, the largest possible bucket."""
    largest = min(max(param_bytes, _LEAST_RANGE_BYTES), LARGEST_BYTES) // ELEMENT_BYTES * ELEMENT_BYTES
    sizes = [SMALLEST_BYTES]
    while sizes[-1] * _GROWTH < largest:
        sizes.append(sizes[-1] * _GROWTH)
    return [*sizes, largest]


def lone_codec(name: str, num_values: int) -> Codec:
    """The codec of that name with a plan's defaults, on one rank, for a nearly square matrix and the remaining values."""
    columns = max(math.isqrt(num_values), 1)
    rows, left = divmod(num_values, columns)
    return make_codec(CompressionPlan(codec=name), BufferShape(shapes=((rows, columns), (left,)), rank=0, num_ranks=1))


def measure_codecs(
    names: Iterable[str],
    sizes: Sequence[int],
    device: torch.device,
    *,
    codec_of: Callable[[str, int], Codec] = lone_codec,
    clock: Clock = time.perf_counter,
) -> dict[str, list[CodecSample]]:
    """Each codec at each size. Each round makes a new codec: the state of all of them would be many times the gradients."""
    generator = torch.Generator().manual_seed(0)
    gradient = (torch.randn(max(sizes) // ELEMENT_BYTES, generator=generator) * _GRADIENT_SCALE).to(device)
    probe = _CodecProbe(gradient, _waiting_for(device, clock))
    names = list(names)
    cases = [(name, size, size // ELEMENT_BYTES) for name, size in product(names, sizes)]
    repeats = {(name, size): _repeats(*probe.seconds(codec_of(name, count), count)) for name, size, count in cases}
    times: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in repeats}
    for _ in range(_ROUNDS):
        for name, size, count in cases:
            times[name, size].append(probe.seconds(codec_of(name, count), count, *repeats[name, size]))
    return {name: [_typical(size, times[name, size]) for size in sizes] for name in names}


class _CodecProbe:
    """Times codecs. Results go to a separate buffer, so that all codecs encode the same gradient."""

    def __init__(self, gradient: Tensor, now: Clock) -> None:
        self._gradient, self._result, self._now = gradient, torch.zeros_like(gradient), now

    def seconds(self, codec: Codec, count: int, num_encodes: int = 1, num_decodes: int = 1) -> tuple[float, float]:
        """Seconds of one encode and of one whole decode of `count` values, averaged over the given numbers of calls."""
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
    """Decode all rounds: the only rank receives what it sent, in every kind of round."""
    following: Round | None = first
    while following is not None:
        following = codec.decode(following.tensors, result)


def _waiting_for(device: torch.device, clock: Clock) -> Clock:
    """A clock that waits for an accelerator, which runs behind the host, before it is read."""
    if not handle(device).is_accelerator:
        return clock

    def now() -> float:
        handle(device).synchronize()
        return clock()

    return now


def _repeats(encode_s: float, decode_s: float) -> tuple[int, int]:
    """The number of calls that makes a loop long enough to be timed."""
    encodes, decodes = (min(max(int(_LOOP_S / max(s, 1e-9)), 1), _MOST_REPEATS) for s in (encode_s, decode_s))
    return encodes, decodes


def _typical(num_bytes: int, times: Sequence[tuple[float, float]]) -> CodecSample:
    return CodecSample(
        num_bytes=num_bytes,
        encode_s=median(encode_s for encode_s, _ in times),
        decode_s=median(decode_s for _, decode_s in times),
    )
