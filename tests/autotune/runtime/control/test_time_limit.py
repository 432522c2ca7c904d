"""A rank that hangs tells the others where it stands, and ends the job."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from autotune.runtime.control import time_limit as module
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.network import Network
from autotune.runtime.control.time_limit import SET_UP_VARIABLE, set_up_limit_s, time_limit
from tests.gloo_ranks import on_networks


class OnThread(Control):
    """The control plane of a rank that is a thread."""

    def __init__(self, network: Network) -> None:
        self.rank, self.size, self._network = network.rank, network.size, network
        self.has_aborted = threading.Event()

    def abort(self, exit_code: int) -> Any:
        assert exit_code == 1
        self.has_aborted.set()


def hang(until: threading.Event) -> None:
    until.wait(20)


@pytest.mark.parametrize("hanging", [0, 2])
def test_a_rank_that_hangs_is_named_to_all_with_the_place_where_it_stands(
    hanging: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_OTHERS_S", 0.5)
    have_looked = threading.Barrier(3)

    def run(network: Network) -> list[str]:
        control = OnThread(network)
        if network.rank == hanging:
            with time_limit(control, 0.2, "setting up", "wait longer"):
                hang(control.has_aborted)
            assert control.has_aborted.is_set()
        end_s = time.monotonic() + 10
        while network.rank != hanging and not network.losses and time.monotonic() < end_s:
            time.sleep(0.01)
        found = [*network.losses.values()]
        have_looked.wait(20)
        return found

    found = on_networks(3, run)
    assert found[hanging] == []
    for rank in {0, 1, 2} - {hanging}:
        (why,) = found[rank]
        assert why.startswith(f"rank {hanging} has been setting up for 0.2 s and stands in wait() at ")
        assert why.endswith("does it hang? wait longer")
    assert f"autotune: error: rank {hanging} has been setting up" in capsys.readouterr().err


def test_work_within_its_limit_ends_nothing() -> None:
    control = OnThread(Network.alone())
    with time_limit(control, 0.1, "setting up", ""):
        pass
    time.sleep(0.2)
    assert not control.has_aborted.is_set()


@pytest.mark.parametrize(("value", "limit_s"), [("30", 30.0), ("", 1800.0), ("soon", 1800.0)])
def test_the_limit_of_the_set_up_can_be_changed(value: str, limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SET_UP_VARIABLE, value)
    assert set_up_limit_s() == limit_s
