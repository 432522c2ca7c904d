"""How a codec's rounds are exchanged, and how large they are. The runtime and the simulator both read this."""

from __future__ import annotations

import math
from collections.abc import Sequence

SUM, GATHER, SWAP = "sum", "gather", "swap"
"""How a round is exchanged. `sum`: the tensor becomes the sum over ranks, in place. `gather`: every rank receives every rank's
tensor; their sizes may differ. `swap`: rank r's tensor number j goes to rank j; all tensors for one rank are equally long."""

Shape = tuple[int, ...]
Rounds = tuple[tuple[str, int], ...]

BLOCK_VALUES = 256
"""Of "int8": so many neighbours share one scale. More would save little (a scale is 4 bytes) and let one outlier coarsen more."""
SCALE_BYTES = 4
INDEX_BYTES = 4


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


def int8_rounds(num_values: int, num_ranks: int) -> Rounds:
    """Of "int8": every rank sends the slices that others own, then its own sum to all."""
    values = slice_values(num_values, num_ranks)
    num_bytes = values + slice_blocks(values) * SCALE_BYTES
    return (SWAP, num_ranks * num_bytes), (GATHER, num_bytes)


def low_rank_rounds(shapes: Sequence[Shape], low_rank: int, element_bytes: int) -> Rounds:
    """Of "powersgd": one thin factor of every matrix, then the other."""
    first, second = 0, 0
    for shape in shapes:
        if (matrix := as_matrix(shape, low_rank)) is None:
            first += math.prod(shape)
        else:
            first += low_rank * matrix[0]
            second += low_rank * matrix[1]
    sums = ((SUM, first * element_bytes), (SUM, second * element_bytes))
    return sums if second else sums[:1]
