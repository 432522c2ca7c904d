"""How many bytes a unit of gradients puts on the wire. The runtime and the simulator both read this: a plan means one thing.

A codec sends a unit in rounds, each exchanged as a whole. The sizes follow from the plan and the shapes of the unit's
parameters alone, so that they are known before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autotune.workloads.errors import unknown_name
from autotune.workloads.plan.plan import CompressionPlan

SUM, GATHER, SWAP = "sum", "gather", "swap"
"""How a round is exchanged. `sum`: the tensor becomes the sum over ranks, in place. `gather`: every rank receives every rank's
tensor; their sizes may differ. `swap`: rank r's tensor number j goes to rank j; all tensors for one rank are equally long."""

Shape = tuple[int, ...]
Rounds = tuple[tuple[str, int], ...]

BLOCK_VALUES = 256
"""Of "int8": so many neighbours share one scale. More would save little (a scale is 4 bytes) and let one outlier coarsen more."""
SCALE_BYTES = 4
INDEX_BYTES = 4


def wire_bytes(
    compression: CompressionPlan, shapes: Sequence[Shape], num_ranks: int, element_bytes: int
) -> tuple[tuple[str, int], ...]:
    """Each round's kind, and the bytes that a rank hands over in it; of a `swap`, what it hands to itself included.

    `shapes`: of the unit's parameters; `element_bytes`: of one gradient value.
    """
    num_values = sum(map(math.prod, shapes))
    rounds: dict[str, Callable[[], Rounds]] = {
        "none": lambda: ((SUM, num_values * element_bytes),),
        "fp16": lambda: ((SUM, num_values * 2),),
        "bf16": lambda: ((SUM, num_values * 2),),
        "int8": lambda: _int8_rounds(num_values, num_ranks),
        "topk": lambda: ((GATHER, top_count(num_values, compression.top_share) * (element_bytes + INDEX_BYTES)),),
        "powersgd": lambda: _low_rank_rounds(shapes, compression.low_rank, element_bytes),
    }
    if compression.codec not in rounds:
        raise unknown_name("codec", compression.codec, rounds)
    return rounds[compression.codec]()


def slice_values(num_values: int, num_ranks: int) -> int:
    """Of "int8": the values that each rank owns; the last ones' may be padding."""
    return -(-num_values // num_ranks)


def slice_blocks(values: int) -> int:
    """Of "int8": the scales that go with a slice of so many values."""
    return -(-values // BLOCK_VALUES)


def top_count(num_values: int, top_share: float) -> int:
    """Of "topk": the values that are sent, at least one."""
    return min(max(round(top_share * num_values), 1), num_values)


def as_matrix(shape: Shape, low_rank: int) -> tuple[int, int] | None:
    """Of "powersgd": rows and columns that a parameter is seen as; None if its factors would not be smaller than itself."""
    if len(shape) < 2 or 0 in shape:
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows, columns) if low_rank * (rows + columns) < rows * columns else None


def _int8_rounds(num_values: int, num_ranks: int) -> Rounds:
    values = slice_values(num_values, num_ranks)
    num_bytes = values + slice_blocks(values) * SCALE_BYTES
    return (SWAP, num_ranks * num_bytes), (GATHER, num_bytes)


def _low_rank_rounds(shapes: Sequence[Shape], low_rank: int, element_bytes: int) -> Rounds:
    first, second = 0, 0
    for shape in shapes:
        if (matrix := as_matrix(shape, low_rank)) is None:
            first += math.prod(shape)
        else:
            first += low_rank * matrix[0]
            second += low_rank * matrix[1]
    sums = ((SUM, first * element_bytes), (SUM, second * element_bytes))
    return sums if second else sums[:1]
