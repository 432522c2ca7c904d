"""Fixtures of the reducers' tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [t for t in threading.enumerate() if t not in before and t.name.startswith("autotune")] == []
