"""What ranks know of others that have left, and of a failure: its cause wins over the farewells that follow from it."""

from __future__ import annotations

import threading
import time

import pytest

from autotune.runtime.control.network import Network
from autotune.runtime.control.ready import ScheduledPartition
from autotune.runtime.reduce.coordinator import Coordinator, Endpoint, Follower
from autotune.runtime.reduce.send_order import SendOrder
from tests.gloo_ranks import on_networks

NAMED_S = 0.5
"""Longer than rank 0 collects ranks that have left before it names them."""


class Watched:
    """The endpoint of a rank, and the failure that it has reported."""

    def __init__(self, network: Network) -> None:
        self.failure = ""
        self.has_failed = threading.Event()
        self.endpoint: Endpoint
        if network.rank == 0:
            order = SendOrder(num_ranks=network.size, partition_bytes=None, credit_bytes=None)
            self.endpoint = Coordinator(network, order, self._post, self._fail)
        else:
            self.endpoint = Follower(network, self._post, self._fail)

    def _post(self, partition: ScheduledPartition) -> None:
        raise AssertionError(partition)

    def _fail(self, why: str) -> None:
        self.failure = why
        self.has_failed.set()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rank_that_has_failed_has_not_left_in_order(failing: int) -> None:
    """Nor have those that leave because of the failure."""

    def run(network: Network) -> tuple[str, list[int]]:
        watched = Watched(network)
        if network.rank == failing:
            watched.endpoint.leave("ValueError: out of luck", 2 * NAMED_S)
            return "", []
        assert watched.has_failed.wait(10)
        if network.rank == (1 if failing == 0 else 0):
            watched.endpoint.leave(None, 2 * NAMED_S)
        time.sleep(NAMED_S)
        return watched.failure, watched.endpoint.left()

    found = on_networks(3, run)
    why = f"rank {failing}: ValueError: out of luck"
    assert [one for rank, one in enumerate(found) if rank != failing] == [(why, [])] * 2


@pytest.mark.parametrize("leaving", [0, 1])
def test_ranks_that_have_left_before_a_failure_are_known_with_it(leaving: int) -> None:
    """They may be its cause: a collective that they have not joined."""
    has_left = threading.Event()

    def run(network: Network) -> list[int]:
        watched = Watched(network)
        if network.rank == leaving:
            threading.Timer(0.05, has_left.set).start()
            watched.endpoint.leave(None, 2 * NAMED_S)
            return [leaving]
        if network.rank == 2:
            assert has_left.wait(10)
            watched.endpoint.fail("RuntimeError: connection closed")
        assert watched.has_failed.wait(10)
        return watched.endpoint.left()

    assert on_networks(3, run) == [[leaving]] * 3
