"""Bytes on the wire, manually. That codecs really send them is tested with the codecs."""

from __future__ import annotations

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CompressionPlan
from autotune.workloads.plan.codecs import wire_bytes
from autotune.workloads.plan.wire import Shape, as_matrix, top_count

SHAPES = ((1000, 100), (1000,), (8, 3, 3, 3))
NUM_VALUES = 100_000 + 1000 + 216


@pytest.mark.parametrize(
    ("compression", "expected"),
    [
        (CompressionPlan(), (("sum", 4 * NUM_VALUES),)),
        (CompressionPlan(codec="fp16"), (("sum", 2 * NUM_VALUES),)),
        (CompressionPlan(codec="bf16"), (("sum", 2 * NUM_VALUES),)),
        # A quarter is 25304 values in 99 blocks.
        (CompressionPlan(codec="int8"), (("swap", 4 * (25304 + 4 * 99)), ("gather", 25304 + 4 * 99))),
        (CompressionPlan(codec="topk"), (("gather", 1012 * 8),)),
        (CompressionPlan(codec="topk", top_share=1.0), (("gather", NUM_VALUES * 8),)),
        # The convolution is 8 x 27, and 4·35 < 216.
        (CompressionPlan(codec="powersgd"), (("sum", 4 * (4 * 1008 + 1000)), ("sum", 4 * 4 * 127))),
        # 7·35 > 216: it goes as it is.
        (CompressionPlan(codec="powersgd", low_rank=7), (("sum", 4 * (7 * 1000 + 1216)), ("sum", 4 * 7 * 100))),
        (CompressionPlan(codec="powersgd", low_rank=100), (("sum", 4 * NUM_VALUES),)),
    ],
)
def test_rounds_and_bytes(compression: CompressionPlan, expected: tuple[tuple[str, int], ...]) -> None:
    assert wire_bytes(compression, SHAPES, 4, 4) == expected


def test_wider_gradients_widen_what_travels_in_their_own_type() -> None:
    for name, factor in (("none", 2.0), ("fp16", 1.0), ("int8", 1.0), ("topk", 1.5), ("powersgd", 2.0)):
        single, double = (wire_bytes(CompressionPlan(codec=name), SHAPES, 2, width) for width in (4, 8))
        assert [num_bytes for _, num_bytes in double] == [factor * num_bytes for _, num_bytes in single]


@pytest.mark.parametrize(
    ("num_values", "share", "count"), [(0, 0.5, 0), (1, 0.01, 1), (149, 0.01, 1), (1000, 0.01, 10)]
)
def test_at_least_one_value_is_sent_if_there_is_one(num_values: int, share: float, count: int) -> None:
    assert top_count(num_values, share) == count


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [((), None), ((9,), None), ((0, 9), None), ((4, 4), None), ((5, 5), (5, 5)), ((5, 1, 5), (5, 5))],
)
def test_only_what_shrinks_is_a_matrix(shape: Shape, matrix: tuple[int, int] | None) -> None:
    assert as_matrix(shape, 2) == matrix


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(SpecError, match="unknown codec 'topq': did you mean 'topk'"):
        wire_bytes(CompressionPlan(codec="topq"), SHAPES, 4, 4)
