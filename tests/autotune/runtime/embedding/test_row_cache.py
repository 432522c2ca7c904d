from __future__ import annotations

import torch

from autotune.runtime.embedding.layout import Request
from autotune.runtime.embedding.row_cache import RowCache


def test_rows_come_and_leave() -> None:
    cache = RowCache([3, 0, 4], 3, torch.zeros(1, 2))
    request = Request(places=torch.tensor([1, 2, 0, 3], dtype=torch.int32), num_rows=(0, 2, 2), order=[1, 0, 2])
    numbers = cache.numbers(request)
    assert numbers.tolist() == [1, 2, 3, 6]
    assert request.counts == [2, 0, 2]
    cache.put(numbers[1:])
    cache.write(numbers[1:], torch.arange(6.0).view(3, 2))
    assert cache.has(numbers).tolist() == [False, True, True, True]
    cache.drop(numbers[2:3])
    cache.put(numbers[:1])
    cache.write(numbers[:1], torch.full((1, 2), 9.0))
    assert cache.rows(numbers[[0, 1, 3]]).tolist() == [[9, 9], [0, 1], [4, 5]]
    assert [places.tolist() for places in cache.held()] == [[1, 2], [], [3]]
    assert cache.rows_of(2, torch.tensor([3])).tolist() == [[4, 5]]
