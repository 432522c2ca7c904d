"""Every rank receives the same directive before every step, decided from the reports of all ranks."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from autotune.profilers.step_stats import StepRow, StepStats
from autotune.results.store.decision import COMPUTE, LOOK, NETWORK, Decision
from autotune.runtime.control.network import Network
from autotune.runtime.control.step_directives import _DIRECTIVE, StepCoordinator, StepDirective, StepReport
from autotune.runtime.control.wire import HEADER_BYTES
from autotune.runtime.errors import PeerLostError
from autotune.workloads.plan import BatchPlan, Plan
from tests.gloo_ranks import on_ranks, rank_network


def plan(step: int) -> Plan:
    return Plan(batch=BatchPlan(samples=(step, 10 - step)))


def closed(rank: int, step: int) -> StepStats:
    return StepStats(
        rank=rank, step=step, samples=5, step_s=1.0, compute_s=0.5, forward_s=0.2, backward_s=0.3, wait_s=0.5
    )


def report(rank: int, step: int) -> StepReport:
    return StepReport(step=step, samples=5, compute_s=rank + step / 8, closed=closed(rank, step - 1) if step else None)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_receive_the_same_directive_in_every_step(size: int) -> None:
    rows: list[StepRow] = []

    def decide(row: StepRow) -> Decision | None:
        rows.append(row)
        if row.step % 3:
            return None
        return Decision(step=row.step + 1, plan=plan(row.step), kind=COMPUTE, reason="a third")

    def run(group: dist.ProcessGroup) -> list[StepDirective]:
        coordinator = StepCoordinator(rank_network(), decide if group.rank() == 0 else None, timeout_s=10)
        received = []
        for step in range(8):
            received.append(coordinator.directive(step))
            time.sleep(0.002 * group.rank() * (step % 2))
            coordinator.report(report(group.rank(), step))
        group.barrier(dist.BarrierOptions()).wait()
        coordinator.close()
        return received

    expected = [StepDirective(plan=plan(step - 1) if step % 3 == 1 else None) for step in range(8)]
    assert on_ranks(size, run) == [expected] * size
    assert [row.compute_s for row in rows] == [tuple(rank + step / 8 for rank in range(size)) for step in range(8)]
    assert rows[0].closed is None
    assert rows[1].closed is not None
    assert [stats.rank for stats in rows[1].closed] == list(range(size))


def test_a_rank_that_cannot_report_raises_why_where_it_waits() -> None:
    coordinator = StepCoordinator(Network.alone(), None, timeout_s=60)
    coordinator.fail(ValueError("out of luck"))
    coordinator.fail(ValueError("a consequence"))
    with pytest.raises(ValueError, match="out of luck"):
        coordinator.directive(1)


def test_a_rank_that_is_gone_ends_the_wait_of_the_others() -> None:
    def run(group: dist.ProcessGroup) -> Any:
        coordinator = StepCoordinator(rank_network(), (lambda _: None) if group.rank() == 0 else None, timeout_s=10)
        group.barrier(dist.BarrierOptions()).wait()
        if group.rank() == 2:
            coordinator.close()
            return None
        coordinator.report(report(group.rank(), 0))
        try:
            coordinator.directive(1)
        finally:
            coordinator.close()

    found = on_ranks(3, run)
    assert isinstance(found[0], PeerLostError)
    assert "rank 2 is gone" in str(found[0])
    assert isinstance(found[1], PeerLostError)


def test_training_goes_on_if_decide_fails() -> None:
    calls = []

    def decide(row: StepRow) -> Decision | None:
        calls.append(row.step)
        raise ValueError("no idea")

    def run(group: dist.ProcessGroup) -> tuple[list[StepDirective], str]:
        coordinator = StepCoordinator(rank_network(), decide if group.rank() == 0 else None, timeout_s=10)
        received = []
        for step in range(3):
            received.append(coordinator.directive(step))
            coordinator.report(report(group.rank(), step))
        group.barrier(dist.BarrierOptions()).wait()
        coordinator.close()
        return received, coordinator.decide_error

    assert on_ranks(2, run) == [([StepDirective()] * 3, "ValueError: no idea"), ([StepDirective()] * 3, "")]
    assert calls == [0]


def test_all_ranks_probe_their_links_before_the_same_step_and_send_the_result_with_the_next_report() -> None:
    rows: list[StepRow] = []

    def decide(row: StepRow) -> Decision | None:
        rows.append(row)
        kind = {1: LOOK, 2: NETWORK}.get(row.step)
        return None if kind is None else Decision(step=row.step + 1, plan=plan(1), kind=kind, switches=False, reason="")

    def run(group: dist.ProcessGroup) -> list[StepDirective]:
        coordinator = StepCoordinator(rank_network(), decide if group.rank() == 0 else None, timeout_s=10)
        received = []
        for step in range(4):
            received.append(coordinator.directive(step))
            found = (1e6 + group.rank(), 2e6) if received[-1].probes_links else None
            coordinator.report(replace(report(group.rank(), step), arrivals=found))
        group.barrier(dist.BarrierOptions()).wait()
        coordinator.close()
        return received

    assert (
        on_ranks(3, run) == [[StepDirective(), StepDirective(), StepDirective(probes_links=True), StepDirective()]] * 3
    )
    assert [row.arrivals for row in rows] == [None, None, tuple((1e6 + rank, 2e6) for rank in range(3)), None]


def test_a_step_costs_less_than_two_kilobytes_on_eight_ranks() -> None:
    probed = replace(report(7, 10_000_000), arrivals=(123456789.1, 12345678901.1, 1234567890.1))
    directive_bytes = 1 + _DIRECTIVE.size
    assert 7 * (len(probed.pack()) + 8 + directive_bytes + 2 * HEADER_BYTES) < 2000
    assert replace(StepReport.unpack(probed.pack()), closed=probed.closed) == probed
