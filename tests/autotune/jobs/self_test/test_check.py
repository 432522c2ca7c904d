"""A check on ranks that are threads: answers, errors and ranks that hang become findings, and the next check runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from autotune.jobs.self_test import check as module
from autotune.jobs.self_test.check import Check, Outcome, Runner
from autotune.jobs.self_test.finding import OK, PROBLEM, Finding
from autotune.runtime.control.mpi import Control
from autotune.runtime.control.network import Network
from autotune.runtime.control.open_network import open_network
from tests.gloo_ranks import in_threads, thread_controls


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    value: int


def judge(facts: Sequence[tuple[int, Number]]) -> list[Finding]:
    return [Finding(what="sum", state=OK, detail=str(sum(one.value for _, one in facts)))]


def check_of(measure: Callable[[], Number | None], limit_s: float = 20.0) -> Check[Any]:
    return Check(what="sum", facts=Number, measure=measure, judge=judge, limit_s=limit_s, fix="a remedy")


class ThreadJob:
    """What a runner needs of the control plane."""

    def __init__(self, inner: Any, network: Network) -> None:
        self._network, self.rank, self.size, self.share = network, inner.rank, inner.size, inner.share

    def network(self) -> Network:
        return self._network


def on_runners(size: int, run: Callable[[Runner, int], Any]) -> list[Any]:
    controls = thread_controls(size)

    def rank_runs(rank: int) -> Any:
        network = open_network(controls[rank])
        try:
            return run(Runner(cast("Control", ThreadJob(controls[rank], network))), rank)
        finally:
            network.leave(5.0)
            network.stop()

    return in_threads(size, rank_runs)


def details(outcome: Outcome[Any]) -> list[tuple[str, str]]:
    return [(one.state, one.detail) for one in outcome.findings]


def test_all_ranks_have_the_findings_of_all() -> None:
    found = on_runners(3, lambda runner, rank: details(runner.run(check_of(lambda: Number(value=rank)))))
    assert found == [[(OK, "3")]] * 3


def test_a_rank_with_nothing_to_measure_is_left_out() -> None:
    def measure(rank: int) -> Callable[[], Number | None]:
        return lambda: Number(value=5) if rank == 1 else None

    found = on_runners(2, lambda runner, rank: [one for one, _ in runner.run(check_of(measure(rank))).facts])
    assert found == [[1], [1]]


def test_errors_name_the_ranks_and_the_remedy() -> None:
    def fail(rank: int) -> Number:
        if rank != 1:
            raise RuntimeError("no such device\nat some line of C++")
        return Number(value=7)

    for outcome in on_runners(3, lambda runner, rank: runner.run(check_of(lambda: fail(rank)))):
        problem, ok = outcome.findings
        assert (problem.state, problem.detail) == (PROBLEM, "ranks 0, 2: RuntimeError: no such device")
        assert (problem.ranks, problem.fix) == ((0, 2), "a remedy")
        assert ok.detail == "7"


def test_a_rank_that_hangs_is_named_and_the_next_check_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RELEASE_S", 0.1)
    never = threading.Event()

    def run(runner: Runner, rank: int) -> tuple[Any, ...]:
        first = runner.run(check_of(lambda: Number(value=int(rank == 0 or never.wait(60))), limit_s=0.5))
        second = runner.run(check_of(lambda: Number(value=1)))
        return details(first), details(second), runner.has_hung

    try:
        found = on_runners(2, run)
    finally:
        never.set()
    for first, second, _ in found:
        assert first == [(PROBLEM, "rank 1: no answer within 0.5 s"), (OK, "1")]
        assert second == [(OK, "2")]
    assert [hung for _, _, hung in found] == [False, True]


def test_a_rank_that_fails_releases_what_the_others_wait_for() -> None:
    """A topic of the check's scope ends on all ranks: that is how collectives of accelerators are given up."""

    class Handler:
        def __init__(self) -> None:
            self.why = ""
            self.released = threading.Event()

        def lost(self, why: str) -> None:
            self.why = why
            self.released.set()

    def run(runner: Runner, rank: int) -> str:
        handler = Handler()

        def measure() -> Number:
            topic = runner._control.network().topic()
            topic.open(cast("Any", handler))
            if rank == 1:
                raise ValueError("out of luck")
            assert handler.released.wait(20)
            return Number(value=0)

        runner.run(check_of(measure))
        return handler.why

    assert on_runners(2, run)[0] == "rank 1: ValueError: out of luck"
