"""One contract for all codecs, on ranks that move in lockstep; a new codec registers in autotune.workloads.plan."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from autotune.runtime.codecs.error_feedback import ErrorFeedback
from autotune.runtime.codecs.factory import BufferShape, make_codec
from autotune.runtime.codecs.protocol import GATHER, SUM, SWAP, Cast, Identity, Round
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CODECS, CompressionPlan, lossless_codecs
from autotune.workloads.plan.codecs import wire_bytes
from tests.autotune.runtime.reduce.lockstep import Ranks

LOSSY_CODECS = tuple(name for name in CODECS if name not in lossless_codecs())
SHAPES = ((12, 10), (7,), (6, 2, 3, 3), (2, 2), ())
"""A matrix, a vector, a convolution, a matrix too small for factors, and a lone number."""
NUM_VALUES = sum(map(math.prod, SHAPES))
RANK_SCALES = (1.0, 30.0, 0.01, 5.0, 0.3)
SUMMED_NARROWLY = ("fp16", "bf16")
FLOATS = (torch.float32, torch.float64)


def plan(name: str) -> CompressionPlan:
    return CompressionPlan(codec=name, top_share=0.1, low_rank=2)


def ranks(name: str, num_ranks: int = 4, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> Ranks:
    return Ranks.of(plan(name), shapes, num_ranks)


def gradients(
    num_ranks: int = 4, num_values: int = NUM_VALUES, *, decades: float = 4.0, dtype: torch.dtype = torch.float64
) -> Iterator[list[Tensor]]:
    """Steps: noise around a fixed direction, of ranks with unlike magnitudes and of values that span `decades`."""
    generator = torch.Generator().manual_seed(3)
    spread = 10.0 ** torch.linspace(-decades / 2, decades / 2, num_values, dtype=torch.float64)
    spread = spread[torch.randperm(num_values, generator=generator)]
    direction = torch.randn(num_ranks, num_values, generator=generator, dtype=torch.float64)
    while True:
        noise = torch.randn(num_ranks, num_values, generator=generator, dtype=torch.float64)
        rows = (direction + noise) * spread
        yield [(row * RANK_SCALES[rank]).to(dtype) for rank, row in enumerate(rows)]


def first(
    name: str, num_ranks: int = 4, dtype: torch.dtype = torch.float32
) -> tuple[Ranks, list[Tensor], list[Tensor]]:
    """A first step: the ranks, their gradients, their results."""
    group, given = ranks(name, num_ranks), next(gradients(num_ranks, dtype=dtype))
    return group, given, group.step(given)


def check_nothing_is_lost(group: Ranks, given: list[Tensor]) -> None:
    """With nothing owed before: a step's result and what is owed after it."""
    found = group.step(given)[0].double()
    if not group.codecs[0].is_lossless:
        found += group.owed()
    if group.codecs[0].name in SUMMED_NARROWLY:
        found += group.rounded_off
    tolerance = 1e-5 if given[0].dtype == torch.float32 else 1e-13
    expected = torch.stack(given).double().sum(dim=0)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("name", CODECS)
class TestEveryCodec:
    def test_has_the_name_it_is_asked_for_by_and_knows_whether_it_loses_anything(self, name: str) -> None:
        codec = ranks(name).codecs[0]
        assert codec.name == name
        assert codec.is_lossless is (name in lossless_codecs())

    @pytest.mark.parametrize("num_ranks", [1, 2, 5])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_leaves_the_same_on_every_rank_step_after_step(self, name: str, num_ranks: int, dtype: torch.dtype) -> None:
        group, steps = ranks(name, num_ranks), gradients(num_ranks, dtype=dtype)
        for _ in range(4):
            results = group.step(next(steps))
            assert all(torch.equal(result, results[0]) for result in results)
            assert results[0].dtype == dtype

    @pytest.mark.parametrize("num_ranks", [1, 4])
    @pytest.mark.parametrize("dtype", FLOATS)
    def test_result_and_what_is_owed_are_the_sum_over_ranks(
        self, name: str, num_ranks: int, dtype: torch.dtype
    ) -> None:
        check_nothing_is_lost(ranks(name, num_ranks), next(gradients(num_ranks, dtype=dtype)))

    def test_writes_into_the_gradients_own_storage_and_not_before_the_end_of_encoding(self, name: str) -> None:
        """Parameters hold views of the buffer: they must not point to an old tensor."""
        flat = next(gradients(1, dtype=torch.float32))[0]
        view, before, codec = flat[3:9], flat.clone(), ranks(name, 1).codecs[0]
        following: Round | None = codec.encode(flat)
        assert torch.equal(flat, before)
        while following is not None:
            following = codec.decode([tensor.clone() for tensor in following.tensors], flat)
        assert torch.equal(view, flat[3:9])
        assert flat.abs().max() > 0

    @pytest.mark.parametrize("num_ranks", [1, 4])
    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("shapes", [SHAPES, ((1,),), ((2, 2),), ((40, 30), (30,)), ((64, 64), (3, 500))])
    def test_puts_on_the_wire_what_a_plan_is_said_to(
        self, name: str, num_ranks: int, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...]
    ) -> None:
        group = ranks(name, num_ranks, shapes)
        group.step(next(gradients(num_ranks, sum(map(math.prod, shapes)), dtype=dtype)))
        expected = wire_bytes(plan(name), shapes, num_ranks, dtype.itemsize)
        for rank in range(num_ranks):
            assert tuple((posted[rank].kind, posted[rank].num_bytes) for posted in group.posted) == expected

    @pytest.mark.parametrize("num_ranks", [1, 3])
    def test_posts_flat_tensors_one_or_with_swap_one_per_rank(self, name: str, num_ranks: int) -> None:
        group, _, _ = first(name, num_ranks)
        for posted in group.posted:
            assert {one.kind for one in posted} <= {SUM, GATHER, SWAP}
            for one in posted:
                assert len(one.tensors) == (num_ranks if one.kind == SWAP else 1)
                assert all(tensor.dim() == 1 and tensor.is_contiguous() for tensor in one.tensors)
            for to_rank in zip(*(one.tensors for one in posted), strict=True):
                assert len({tensor.numel() for tensor in to_rank}) == 1

    @pytest.mark.parametrize("num_ranks", [1, 3])
    def test_passes_zeros_exactly(self, name: str, num_ranks: int) -> None:
        group = ranks(name, num_ranks)
        for _ in range(3):
            assert not group.step([torch.zeros(NUM_VALUES)] * num_ranks)[0].any()

    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    @pytest.mark.parametrize("num_ranks", [1, 4])
    def test_takes_a_buffer_of_one_value(self, name: str, num_ranks: int, shape: tuple[int, ...]) -> None:
        results = ranks(name, num_ranks, (shape,)).step([torch.tensor([0.5])] * num_ranks)
        assert results[0].tolist() == pytest.approx([0.5 * num_ranks], rel=0.01)

    @pytest.mark.parametrize("num_ranks", [1, 3])
    @pytest.mark.parametrize("shapes", [(), ((0,),), ((0, 5),)])
    def test_takes_an_empty_buffer(self, name: str, num_ranks: int, shapes: tuple[tuple[int, ...], ...]) -> None:
        results = ranks(name, num_ranks, shapes).step([torch.zeros(0)] * num_ranks)
        assert results[0].numel() == 0

    @pytest.mark.parametrize("bad", [-math.inf, math.nan])
    @pytest.mark.parametrize("where", [119, 122])
    @pytest.mark.parametrize("num_ranks", [1, 4])
    def test_shows_what_is_not_finite_on_every_rank_and_then_forgets_it(
        self, name: str, num_ranks: int, where: int, bad: float
    ) -> None:
        group, steps = ranks(name, num_ranks), gradients(num_ranks, dtype=torch.float32)
        group.step(next(steps))
        broken = next(steps)
        broken[-1][where] = bad
        assert not any(result.isfinite().all() for result in group.step(broken))
        assert name in lossless_codecs() or not group.owed().any()
        group.rounded_off = 0.0
        check_nothing_is_lost(group, next(steps))

    def test_accounts_for_its_memory(self, name: str) -> None:
        group, given, _ = first(name)
        codec, on_wire = group.codecs[0], sum(posted[0].num_bytes for posted in group.posted)
        if name == "none":
            assert codec.buffer_bytes(given[0]) == 0
        else:
            kept = codec.buffer_bytes(given[0]) - on_wire - given[0].nbytes
            factors = (12 + 10 + 10, 6 + 18 + 18)  # P, Q and the first Q of each matrix
            assert kept == (2 * 4 * sum(factors) if name == "powersgd" else 0)


@pytest.mark.parametrize("name", LOSSY_CODECS)
class TestEveryLossyCodec:
    @pytest.mark.parametrize("num_ranks", [1, 2, 5])
    def test_loses_nothing_over_many_steps_but_what_it_still_owes(self, name: str, num_ranks: int) -> None:
        """Of fp16 and bf16 also what their sums round off on the way, which no rank can see."""
        group, steps = ranks(name, num_ranks), gradients(num_ranks)
        true, applied = torch.zeros(NUM_VALUES, dtype=torch.float64), torch.zeros(NUM_VALUES, dtype=torch.float64)
        for _ in range(60):
            given = next(steps)
            true += torch.stack(given).sum(dim=0)
            applied += group.step(given)[0]
        arrived = applied + (group.rounded_off if name in SUMMED_NARROWLY else 0.0)
        torch.testing.assert_close(arrived + group.owed(), true, rtol=1e-11, atol=1e-9)
        assert group.owed().any()

    def test_never_owes_more_than_a_few_steps_and_so_applies_the_true_mean_in_the_end(self, name: str) -> None:
        group, steps = ranks(name), gradients(decades=1.0)
        owed, true = [], torch.zeros(NUM_VALUES, dtype=torch.float64)
        for _ in range(200):
            given = next(steps)
            true += torch.stack(given).sum(dim=0)
            group.step(given)
            owed.append(float(group.owed().norm()))
        assert max(owed[100:]) < 1.5 * max(owed[:100])
        assert owed[-1] < 0.1 * float(true.norm())

    def test_sends_at_last_what_is_too_small_to_be_sent_beside_the_rest(self, name: str) -> None:
        """It points the same way in every step, and the rest, a hundred times larger, does not."""
        group, num_steps = ranks(name, 1, ((64, 64),)), 300
        large = torch.randn(4096, generator=torch.Generator().manual_seed(1))
        applied = torch.zeros_like(large)
        for sign in [1, -1] * (num_steps // 2):
            applied += group.step([sign * large + 0.01])[0]
        assert float(applied.mean()) == pytest.approx(num_steps * 0.01, rel=0.2)

    def test_keeps_nothing_of_another_buffer(self, name: str) -> None:
        group, given, results = first(name)
        again = ranks(name).step(given)
        assert torch.equal(again[0], results[0])
        assert not torch.equal(group.step(given)[0], results[0])


class TestIdentity:
    def test_sends_the_gradient_itself_and_costs_no_copy(self) -> None:
        flat = torch.ones(3)
        assert Identity().encode(flat).tensors[0] is flat


class TestCast:
    @pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
    def test_what_is_too_large_for_fp16_is_owed_not_lost(self, num_ranks: int) -> None:
        """Gradients are finite, and their sum exceeds 65,504: all of it arrives, in several steps."""
        group, large = ranks("fp16", num_ranks, ((2,),)), torch.tensor([5e4, -1.0], dtype=torch.float64)
        arrived = group.step([large] * num_ranks)[0].clone()
        assert arrived.isfinite().all()
        for _ in range(2 * num_ranks):
            arrived += group.step([torch.zeros_like(large)] * num_ranks)[0]
        assert torch.allclose(arrived, num_ranks * large, rtol=1e-3)

    def test_bf16_keeps_the_range_that_fp16_loses(self) -> None:
        large = torch.tensor([1e10])
        assert ranks("fp16", 1, ((1,),)).step([large])[0] < 65_504
        assert torch.isclose(ranks("bf16", 1, ((1,),)).step([large])[0], large, rtol=0.01).all()

    def test_rounds_to_the_nearest(self) -> None:
        values = torch.linspace(-3, 3, 1001)
        for name, step in (("fp16", 2.0**-11), ("bf16", 2.0**-8)):
            (result,) = ranks(name, 1, ((1001,),)).step([values])
            assert torch.all((result - values).abs() <= step * values.abs().clamp(min=1e-3))
            assert not torch.equal(result, values)

    @pytest.mark.parametrize(("name", "step"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
    def test_loses_in_each_sum_at_most_what_its_type_must_round_off(self, name: str, step: float) -> None:
        """The limit of the feedback: a rank's value that is too small beside the others' may be lost in every sum."""
        group, num_steps = ranks(name, 2, ((1,),)), 100
        large, small = torch.tensor([1.0]), torch.tensor([step / 4])
        applied = sum(float(group.step([large, small])[0]) for _ in range(num_steps))
        assert applied == num_steps * 1.0
        assert abs(float(group.rounded_off)) <= num_steps * step * 1.0

    def test_alone_forgets_what_it_rounded_off_and_with_feedback_does_not(self) -> None:
        """A value that lies between two: alone, it is always rounded the same way."""
        value = torch.tensor([1.0 + 2.0**-10])
        plain, repaid = (
            sum(float(group.step([value])[0]) for _ in range(64))
            for group in (
                Ranks([Cast("bf16", torch.bfloat16)]),
                Ranks([ErrorFeedback(Cast("bf16", torch.bfloat16))]),
            )
        )
        assert plain == 64.0
        assert repaid == pytest.approx(64 * (1.0 + 2.0**-10), abs=2.0**-7)


def test_an_unknown_codec_suggests_the_nearest() -> None:
    buffer = BufferShape(shapes=((2,),), rank=0, num_ranks=1)
    with pytest.raises(SpecError, match="unknown codec 'fp61': did you mean 'fp16'"):
        make_codec(CompressionPlan(codec="fp61"), buffer)
