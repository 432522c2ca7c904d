"""Messages of the control plane: what goes in comes out, and nothing is executed."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch

from autotune.runtime.control.messages import decode, encode


@pytest.mark.parametrize(
    "value", [None, 3, "é", [1, [2.5, None]], {"a": {"b": b"\0\xff"}, "c": [b"", b"xy" * 1000]}, b"z"]
)
def test_values_and_bytes_come_back(value: Any) -> None:
    assert decode(encode(value)) == value


def test_tuples_become_lists_and_numbers_of_tensors_plain() -> None:
    assert decode(encode((1, torch.tensor(2), math.inf))) == [1, 2, math.inf]


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match="JSON-able"):
        encode({"a": object()})


def test_a_pickle_is_not_loaded() -> None:
    with pytest.raises(Exception, match=r"Expecting|utf|unpack|decode|range"):
        decode(pickle.dumps({"a": 1}))
