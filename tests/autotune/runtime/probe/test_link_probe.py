"""The timing of an exchange at several sizes, with a fake exchange and a fake job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch

from autotune.results.store.fits import TransferFit
from autotune.runtime.control.mpi import Control
from autotune.runtime.probe.link_probe import ProbeBudget, message_rows, pairs_to_measure, sweep
from autotune.runtime.probe.timed_collectives import (
    NUM_IN_FLIGHT,
    AllGather,
    AllReduce,
    AllReducesInFlight,
    Broadcast,
    Exchange,
    GroupMember,
    Message,
)

GBIT = 125e6
BUDGET = ProbeBudget()


class Alone:
    """A job whose other ranks share the same values as this one."""

    size = 2

    def share(self, message: Any) -> list[Any]:
        return [message, message]


CONTROL = cast("Control", Alone())


@dataclass
class Known:
    """An exchange that takes latency + bytes / bandwidth; `calls` holds (bytes, repeats)."""

    latency_s: float
    bytes_per_s: float
    num_wrong: int = 0
    calls: list[tuple[int, int]] = field(default_factory=list)
    disturbed: int = -1

    def size_of(self, num_bytes: int) -> int:
        return num_bytes

    def check(self, num_bytes: int) -> int:
        return self.num_wrong

    def loop(self, num_bytes: int, count: int) -> float:
        self.calls.append((num_bytes, count))
        noise = 10.0 if len(self.calls) == self.disturbed else 1.0
        return noise * count * (self.latency_s + num_bytes / self.bytes_per_s)


def test_sizes_grow_by_four_up_to_the_largest() -> None:
    rows = sweep(CONTROL, Known(100e-6, 10 * GBIT), BUDGET, kind="all-reduce")
    assert [row.num_bytes for row in rows] == [512 * 4**power for power in range(8)]
    assert rows[-1].num_bytes == 8 * 2**20


def test_the_line_comes_back() -> None:
    fit = TransferFit.measured(sweep(CONTROL, Known(5e-3, GBIT), BUDGET, kind="all-reduce"))
    assert fit.latency_s == pytest.approx(5e-3)
    assert fit.bytes_per_s == pytest.approx(GBIT)
    assert (fit.low, fit.high, fit.covers(2**23), fit.covers(2**24)) == (512, 2**23, True, False)


def test_one_disturbed_loop_does_not_count() -> None:
    rows = sweep(CONTROL, Known(1e-3, GBIT, disturbed=2), BUDGET, kind="all-reduce")
    assert rows[0].seconds == pytest.approx(1e-3 + 512 / GBIT)


def test_a_slow_link_ends_the_sweep_before_it_takes_too_long() -> None:
    slow = Known(0.0, GBIT / 100)
    rows = sweep(CONTROL, slow, BUDGET, kind="all-reduce")
    assert rows[-1].seconds * BUDGET.growth > BUDGET.longest_s
    assert rows[-1].seconds < BUDGET.longest_s
    assert sum(count * (num_bytes / slow.bytes_per_s) for num_bytes, count in slow.calls) < 5


def test_quick_exchanges_are_repeated_and_slow_ones_are_not() -> None:
    exchange = Known(100e-6, GBIT)
    sweep(CONTROL, exchange, BUDGET, kind="all-reduce")
    by_size = {size: [n for s, n in exchange.calls if s == size] for size, _ in exchange.calls}
    assert by_size[512] == [1, *[min(int(0.015 / (100e-6 + 512 / GBIT)), 50)] * 7]
    assert by_size[8 * 2**20] == [1, 1, 1]


def test_wrong_elements_of_all_ranks_are_counted() -> None:
    rows = sweep(CONTROL, Known(1e-3, GBIT, num_wrong=3), BUDGET, kind="all-reduce")
    assert {row.num_wrong for row in rows} == {6}


@pytest.mark.parametrize("disturbed", [0, 4, 512, 131072])
def test_a_message_is_a_round_trip_without_its_answer(disturbed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two latencies, one of which belongs to the answer; one disturbed size does not shift the others."""

    @dataclass
    class ThereAndBack(Known):
        def loop(self, num_bytes: int, count: int) -> float:
            back_s = self.latency_s * (3 if num_bytes == disturbed else 1)
            return super().loop(num_bytes, count) + count * back_s

    monkeypatch.setattr("autotune.runtime.probe.link_probe.Message", lambda *_: ThereAndBack(5e-3, GBIT))
    rows = message_rows(CONTROL, cast("GroupMember", None), 0, 1, BUDGET)
    assert rows[0].num_bytes == 4
    for row in rows:
        if row.num_bytes != disturbed:
            assert row.seconds == pytest.approx(5e-3 + row.num_bytes / GBIT)
        assert row.algbw_bytes_per_s == row.busbw_bytes_per_s


# --- which pairs -------------------------------------------------------------------------------------------------------


def test_all_ordered_pairs_of_few_hosts_by_their_first_ranks() -> None:
    assert pairs_to_measure((0, 0, 1, 2), within_hosts=False) == [(0, 2), (0, 3), (2, 0), (2, 3), (3, 0), (3, 2)]


def test_two_ranks_of_a_host_where_asked() -> None:
    assert pairs_to_measure((0, 0, 0), within_hosts=True) == [(0, 1), (1, 0)]
    assert pairs_to_measure((0, 1, 0, 1), within_hosts=True)[2:] == [(0, 2), (2, 0), (1, 3), (3, 1)]
    assert pairs_to_measure((0, 0, 0), within_hosts=False) == []


@pytest.mark.parametrize("num_hosts", [5, 8, 64])
def test_of_many_hosts_a_ring_and_a_star(num_hosts: int) -> None:
    pairs = pairs_to_measure(range(num_hosts), within_hosts=True)
    assert len(pairs) == len(set(pairs)) <= 3 * num_hosts
    for host in range(num_hosts):
        assert any(a == host for a, _ in pairs)
        assert any(b == host for _, b in pairs)
        assert (host, (host + 1) % num_hosts) in pairs


# --- checks find what is wrong -----------------------------------------------------------------------------------------


class Done:
    def wait(self) -> bool:
        return True


class FakeGroup:
    """Rank `own` of two. Its collectives give what the two ranks' values make, but for one element if `broken`."""

    def __init__(self, *, own: int, broken: bool) -> None:
        self._own, self._broken = own, broken

    def rank(self) -> int:
        return self._own

    def size(self) -> int:
        return 2

    def _spoil(self, tensor: torch.Tensor) -> Done:
        if self._broken:
            tensor[-1] += 1
        return Done()

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Done:
        tensors[0].mul_(3 / (self._own + 1))
        return self._spoil(tensors[0])

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Done:
        tensors[0].copy_(torch.arange(len(tensors[0])) % 7 + 1.0)
        return self._spoil(tensors[0])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any) -> Done:
        for rank, part in enumerate(outputs[0]):
            part.copy_(inputs[0] / (self._own + 1) * (rank + 1))
        return self._spoil(outputs[0][1])

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Done:
        tensors[0].copy_(torch.arange(len(tensors[0])) % 7 + 1.0)
        return self._spoil(tensors[0])

    def send(self, tensors: list[torch.Tensor], target: int, tag: int) -> Done:
        return Done()


def exchange(kind: str, *, broken: bool) -> Exchange:
    member = GroupMember(group=cast("Any", FakeGroup(own=1, broken=broken)), device=torch.device("cpu"))
    made: dict[str, Exchange] = {
        "all-reduce": AllReduce(member),
        "broadcast": Broadcast(member),
        "all-gather": AllGather(member),
        "message": Message(member, 0, 1),
    }
    return made[kind]


@pytest.mark.parametrize("kind", ["all-reduce", "broadcast", "all-gather", "message"])
@pytest.mark.parametrize("num_bytes", [8, 1000, 4096])
def test_what_is_right_passes_and_one_wrong_element_is_found(kind: str, num_bytes: int) -> None:
    whole = exchange(kind, broken=False)
    assert whole.check(whole.size_of(num_bytes)) == 0
    assert exchange(kind, broken=True).check(whole.size_of(num_bytes)) == 1


@pytest.mark.parametrize("kind", ["all-reduce", "broadcast", "all-gather", "message"])
def test_sizes_are_whole_elements_and_as_many_for_each_rank(kind: str) -> None:
    whole = exchange(kind, broken=False)
    assert whole.size_of(1) >= 4
    for num_bytes in (1, 7, 1000, 1001):
        assert whole.size_of(num_bytes) % (8 if kind == "all-gather" else 4) == 0


def test_all_reduces_in_flight_are_posted_before_any_is_waited_for() -> None:
    """The time is that of each: eight posted together take as long as the group takes for them."""
    posted: list[int] = []
    waited: list[int] = []

    class Work:
        def wait(self) -> None:
            waited.append(len(posted))

    class Group:
        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 1

        def allreduce(self, tensors: list[torch.Tensor], _: Any) -> Work:
            posted.append(tensors[0].nbytes)
            return Work()

    member = GroupMember(group=cast("Any", Group()), device=torch.device("cpu"))
    assert AllReducesInFlight(member).loop(4096, 2) > 0
    assert posted == [4096] * (1 + 2 * NUM_IN_FLIGHT)
    assert waited == [1, *[1 + NUM_IN_FLIGHT] * NUM_IN_FLIGHT, *[1 + 2 * NUM_IN_FLIGHT] * NUM_IN_FLIGHT]
