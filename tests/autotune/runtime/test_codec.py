"""One contract for all codecs; a new one adds its name to workloads.plan.CODECS."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autotune.runtime.codec import Codec, make_codec
from workloads.errors import SpecError
from workloads.plan import CODECS, LOSSLESS_CODECS

RELATIVE_STEP = {"none": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Half the distance between neighbouring numbers: the most that rounding to nearest may be off."""
WIRE_BYTES = {"none": 4, "fp16": 2, "bf16": 2}


@pytest.fixture
def flat() -> Tensor:
    """Numbers of both signs from 0.001 to 2000, all in the normal range of every codec."""
    generator = torch.Generator().manual_seed(0)
    mantissas = (1 + torch.rand(1000, generator=generator)) * torch.tensor([1.0, -1.0]).repeat(500)
    return mantissas * 10.0 ** torch.linspace(-3, 3, 1000)


@pytest.mark.parametrize("name", CODECS)
class TestEveryCodec:
    def test_has_the_name_it_is_asked_for_by(self, name: str) -> None:
        assert make_codec(name).name == name

    def test_leaves_in_a_gradient_what_a_receiver_would_see(self, name: str, flat: Tensor) -> None:
        codec, original = make_codec(name), flat.clone()
        codec.decode(codec.encode(flat), flat)
        assert torch.all((flat - original).abs() <= RELATIVE_STEP[name] * original.abs())

    def test_changes_nothing_the_second_time(self, name: str, flat: Tensor) -> None:
        """What has been rounded once is what travels: all ranks end with the same gradient."""
        codec = make_codec(name)
        codec.decode(codec.encode(flat), flat)
        once = flat.clone()
        codec.decode(codec.encode(flat), flat)
        assert torch.equal(flat, once)

    def test_does_not_change_the_gradient_while_encoding(self, name: str, flat: Tensor) -> None:
        original = flat.clone()
        make_codec(name).encode(flat)
        assert torch.equal(flat, original)

    def test_keeps_the_gradients_own_type_shape_and_storage(self, name: str, flat: Tensor) -> None:
        """Parameters hold views of the bucket: a new tensor would leave them behind."""
        codec, view = make_codec(name), flat[3:9]
        wire = codec.encode(flat)
        codec.decode(wire * 2, flat)
        assert (flat.dtype, flat.shape) == (torch.float32, (1000,))
        assert torch.equal(view, flat[3:9])

    def test_puts_a_reduced_wire_tensor_back(self, name: str, flat: Tensor) -> None:
        codec, original = make_codec(name), flat.clone()
        wire = codec.encode(flat)
        wire.mul_(2)  # what an all-reduce over two equal ranks does, in place
        codec.decode(wire, flat)
        assert torch.allclose(flat, 2 * original, rtol=2 * RELATIVE_STEP[name], atol=0)

    def test_sends_as_many_numbers_as_there_are_each_as_wide_as_it_claims(self, name: str, flat: Tensor) -> None:
        wire = make_codec(name).encode(flat)
        assert wire.numel() == flat.numel()
        assert wire.element_size() == WIRE_BYTES[name]

    def test_passes_zeros_exactly(self, name: str) -> None:
        zeros = torch.zeros(7)
        codec = make_codec(name)
        codec.decode(codec.encode(zeros), zeros)
        assert torch.equal(zeros, torch.zeros(7))

    def test_takes_an_empty_gradient(self, name: str) -> None:
        empty = torch.zeros(0)
        codec = make_codec(name)
        codec.decode(codec.encode(empty), empty)
        assert empty.numel() == 0

    def test_takes_double_precision(self, name: str) -> None:
        doubles = torch.tensor([1.0, -0.5, 3.0], dtype=torch.float64)
        codec = make_codec(name)
        codec.decode(codec.encode(doubles), doubles)
        assert doubles.tolist() == [1.0, -0.5, 3.0]
        assert doubles.dtype == torch.float64

    def test_accounts_for_the_memory_of_its_wire_tensor(self, name: str, flat: Tensor) -> None:
        codec: Codec = make_codec(name)
        wire = codec.encode(flat)
        shared = wire.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        assert codec.buffer_bytes(flat) == (0 if shared else wire.numel() * wire.element_size())


@pytest.mark.parametrize("name", LOSSLESS_CODECS)
def test_a_lossless_codec_sends_the_gradient_itself_and_costs_no_copy(name: str, flat: Tensor) -> None:
    assert make_codec(name).encode(flat) is flat


@pytest.mark.parametrize("name", sorted(set(CODECS) - set(LOSSLESS_CODECS)))
def test_a_lossy_codec_halves_the_bytes_and_does_round(name: str, flat: Tensor) -> None:
    codec, original = make_codec(name), flat.clone()
    wire = codec.encode(flat)
    codec.decode(wire, flat)
    assert wire.nbytes * 2 == flat.nbytes
    assert not torch.equal(flat, original)


def test_bf16_keeps_the_range_that_fp16_loses() -> None:
    large = torch.tensor([1e10])
    assert torch.isinf(make_codec("fp16").encode(large)).all()
    assert torch.isfinite(make_codec("bf16").encode(large)).all()


def test_an_unknown_codec_suggests_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown codec 'fp61': did you mean 'fp16'"):
        make_codec("fp61")
