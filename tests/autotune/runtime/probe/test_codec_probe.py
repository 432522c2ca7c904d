"""Codecs as lines over the bytes of a gradient: exact on a clock that only codecs advance."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from autotune.jobs.device_profile import codec_profile, measured_codecs
from autotune.runtime.codecs.protocol import GATHER, SUM, Round
from autotune.runtime.probe.codec_probe import CodecSample, codec_sizes, lone_codec, measure_codecs
from autotune.workloads.plan import CODECS, MIB

KIB = 1024
CPU = torch.device("cpu")


class KnownCodec:
    """Takes fixed + bytes / bandwidth, twice as long to encode as to decode in two rounds; `disturbed` is a call that
    takes longer."""

    name = "known"
    is_lossless = False

    def __init__(self, disturbed: int = -1) -> None:
        self.now_s = 0.0
        self.sizes: list[int] = []
        self._disturbed = disturbed

    def encode(self, flat: Tensor) -> Round:
        self.sizes.append(flat.nbytes)
        self.now_s += 2e-5 + flat.nbytes / 1e9 + (1.0 if len(self.sizes) == self._disturbed else 0.0)
        return Round(kind=SUM, tensors=(flat.to(torch.float16),))

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> Round | None:
        (wire,) = received
        assert wire.numel() == flat.numel()
        self.now_s += 0.5e-5 + flat.nbytes / 4e9
        return Round(kind=GATHER, tensors=(wire.float(),)) if wire.dtype == torch.float16 else None

    def buffer_bytes(self, flat: Tensor) -> int:
        return flat.nbytes // 2


@pytest.mark.parametrize("disturbed", [-1, 20, 60, 100])
def test_the_line_comes_back_and_one_disturbed_call_moves_nothing(disturbed: int) -> None:
    codec = KnownCodec(disturbed)
    sizes = codec_sizes(4 * MIB)
    found = measure_codecs(["known"], sizes, CPU, codec_of=lambda *_: codec, clock=lambda: codec.now_s)
    profile = codec_profile("known", found["known"])
    assert len(codec.sizes) > disturbed
    assert [row.num_bytes for row in profile.rows] == sizes
    assert [row.encode_s for row in profile.rows] == pytest.approx([2e-5 + size / 1e9 for size in sizes])
    assert (profile.encode.latency_s, profile.encode.bytes_per_s) == pytest.approx((2e-5, 1e9))
    assert (profile.decode.latency_s, profile.decode.bytes_per_s) == pytest.approx((1e-5, 2e9))
    assert (profile.encode.low, profile.encode.high) == (64 * KIB, 4 * MIB)
    assert profile.encode.seconds(MIB) == pytest.approx(profile.rows[2].encode_s)


@pytest.mark.parametrize(
    ("param_bytes", "sizes"),
    [
        (0, [64 * KIB, 256 * KIB, MIB]),
        (MIB, [64 * KIB, 256 * KIB, MIB]),
        (MIB + 6, [64 * KIB, 256 * KIB, MIB, MIB + 4]),
        (5 * MIB, [64 * KIB, 256 * KIB, MIB, 4 * MIB, 5 * MIB]),
        (900 * MIB, [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]),
    ],
)
def test_sizes_go_up_to_the_models_own(param_bytes: int, sizes: list[int]) -> None:
    assert codec_sizes(param_bytes) == sizes


def test_every_codec_of_a_plan_that_does_anything_is_measured() -> None:
    context = SimpleNamespace(graph=SimpleNamespace(param_bytes=MIB), rank_context=SimpleNamespace(torch_device=CPU))
    found = measured_codecs(cast("Any", context))
    assert [codec.name for codec in found] == [name for name in CODECS if name != "none"]
    for codec in found:
        assert all(row.encode_s > 0 and row.decode_s > 0 for row in codec.rows)
        assert codec.encode.seconds(MIB) > codec.encode.seconds(64 * KIB)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("num_values", [1, 2, 250, 16384])
def test_a_probed_codec_takes_any_size_and_the_gradient_stays_as_it_is(name: str, num_values: int) -> None:
    gradient = torch.linspace(-1, 1, num_values)
    codec, before, result = lone_codec(name, num_values), gradient.clone(), torch.zeros(num_values)
    following: Round | None = codec.encode(gradient)
    while following is not None:
        following = codec.decode(following.tensors, result)
    assert torch.equal(gradient, before)
    assert result.any()


def test_a_codec_that_takes_no_longer_for_more_has_no_bandwidth() -> None:
    samples = [CodecSample(num_bytes=size, encode_s=1e-5, decode_s=0.0) for size in (64 * KIB, MIB)]
    profile = codec_profile("fp16", samples)
    assert (profile.encode.latency_s, profile.encode.bytes_per_s) == (1e-5, None)
    assert profile.decode.seconds(MIB) == 0.0
