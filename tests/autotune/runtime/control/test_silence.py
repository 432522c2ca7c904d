"""A rank whose network's thread stands still is found by its neighbours, and no rank that is merely idle is."""

from __future__ import annotations

import threading
import time

import pytest

from autotune.runtime.control.network import LEFT, Network
from autotune.runtime.control.silence import LIMIT_VARIABLE
from tests.gloo_ranks import on_networks

LIMIT_S = 1.5
SIZE = 4


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, str(LIMIT_S))


def why_lost(network: Network, within_s: float) -> str:
    end_s = time.monotonic() + within_s
    while not network.losses and time.monotonic() < end_s:
        time.sleep(0.02)
    return network.why_first


@pytest.mark.slow
def test_ranks_that_say_nothing_are_not_lost() -> None:
    assert on_networks(SIZE, lambda network: why_lost(network, 3 * LIMIT_S)) == [""] * SIZE


@pytest.mark.parametrize("stuck", [0, 1, 3])
def test_all_ranks_name_the_one_whose_threads_stand_still(stuck: int) -> None:
    """Rank 3 is a child of rank 1; rank 0 learns it from there."""
    found = threading.Barrier(SIZE)

    def run(network: Network) -> str:
        if network.rank == stuck:
            network._do(lambda: found.wait(20) and None)  # as all threads of a process that is stopped
            return ""
        try:
            return why_lost(network, 20)
        finally:
            found.wait(20)

    reasons = on_networks(SIZE, run)
    assert [reason[:30] for rank, reason in enumerate(reasons) if rank != stuck] == [
        f"rank {stuck} has not answered for 1.5"[:30]
    ] * (SIZE - 1)


@pytest.mark.slow
def test_a_rank_that_has_said_how_it_ends_may_be_silent() -> None:
    """Its process may stand in MPI's finalisation, which waits for all others."""
    over = threading.Barrier(2)

    def run(network: Network) -> str:
        if network.rank == 1:
            network.farewell(LEFT, "rank 1 has ended its part of the job")
            network._do(lambda: over.wait(20) and None)
            return ""
        try:
            return why_lost(network, 2 * LIMIT_S)
        finally:
            over.wait(20)

    assert on_networks(2, run) == ["", ""]
