"""What windows show: links as they are, whatever the order of ranks, and in spite of a disturbed step."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from autotune.online.features import CANDIDATE_FEATURES, WINDOW_FEATURES, Grid
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Known, known_of
from autotune.online.window import fit_network, window
from autotune.profilers.step_stats import Part, PartSums
from autotune.simulate.cost_sources import cost_model
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.autotune.online.jobs import GRAPH, SAMPLES, make_simulated, observed, offered, seen
from tests.autotune.simulate.test_closed_forms import MB, make_cluster, make_graph

SCHEDULED = Plan(
    batch=BatchPlan(samples=SAMPLES),
    comm=CommPlan(reducer="scheduled", partition_bytes=MB, credit_bytes=MB, crosses_steps=True),
)
BUCKETED = Plan(batch=BatchPlan(samples=SAMPLES), comm=CommPlan(bucket_bytes=8 * MB))


def parts_over(bytes_per_s, latency_s, sizes):
    """One after the other."""
    at, parts = 0.0, []
    for size in sizes:
        end = at + latency_s + size / bytes_per_s
        parts.append(Part(size, at, at, end))
        at = end
    return PartSums.of(parts)


def test_a_line_through_parts_of_different_sizes():
    network = fit_network([parts_over(2e6, 0.01, [1e5, 1e6, 4e6])] * 3)
    assert (network.bytes_per_s, network.latency_s) == pytest.approx((2e6, 0.01))


def test_parts_of_one_size_leave_the_latency_to_what_is_known():
    steps = [parts_over(2e6, 0.01, [1e6] * 4)]
    assert fit_network(steps).latency_s == 0
    known = fit_network(steps, message_s=0.01)
    assert (known.bytes_per_s, known.latency_s) == pytest.approx((2e6, 0.01))


def test_a_disturbed_step_does_not_bend_the_line():
    usual, disturbed = parts_over(2e6, 0.01, [1e5, 1e6]), parts_over(1e5, 0.5, [1e5, 1e6])
    assert fit_network([usual, disturbed, usual]).bytes_per_s == pytest.approx(2e6)


def test_nothing_sent_nothing_known():
    assert fit_network([PartSums()]) is None
    assert fit_network([]) is None


@pytest.mark.parametrize("plan", [SCHEDULED, BUCKETED])
def test_the_links_of_a_simulated_run_are_found(plan):
    """A ring of four ranks puts 1.5 bytes on every link for each byte; ranks with fewer samples wait for the others."""
    found = seen(plan, speed=1 * MB)
    assert found.network.bytes_per_s == pytest.approx(MB / 1.5, rel=0.02)
    assert found.wire_bytes == pytest.approx(GRAPH.param_bytes)


def test_times_of_ranks():
    """1 s forward and 2 s backward for each of 8 ops and each sample; ranks 2 and 3 have half the samples and wait."""
    found = seen(BUCKETED)
    assert [rank.forward_s for rank in found.ranks] == pytest.approx([32.0, 32.0, 16.0, 16.0])
    assert [rank.backward_s for rank in found.ranks] == pytest.approx([64.0, 64.0, 32.0, 32.0])
    assert found.compute_s == pytest.approx(96.0)
    assert found.ranks[2].wait_share > found.ranks[0].wait_share
    assert found.throughput == pytest.approx(12 / make_simulated().step_s(BUCKETED))


def test_a_window_of_half_the_ranks_is_refused():
    steps = observed(make_simulated(), BUCKETED)
    with pytest.raises(SpecError, match="one observation per step and rank"):
        window(steps[:-1], BUCKETED, Known(model=ModelSizes.of(GRAPH)))


def test_numbers_do_not_depend_on_the_order_of_ranks():
    """Ranks renumbered, their observations shuffled, the split with them."""
    turned = (2, 3, 0, 1)
    known, steps = Known(model=ModelSizes.of(GRAPH)), observed(make_simulated(), SCHEDULED)
    renamed = [replace(entry, rank=turned[entry.rank]) for entry in steps]
    random.Random(1).shuffle(renamed)
    samples = tuple(SAMPLES[turned.index(rank)] for rank in range(4))
    moved = replace(SCHEDULED, batch=BatchPlan(samples=samples))
    plans = [SCHEDULED, BUCKETED]
    first = Grid(plans, known).numbers(window(steps, SCHEDULED, known))
    again = Grid([replace(plan, batch=moved.batch) for plan in plans], known).numbers(window(renamed, moved, known))
    for before, after in zip(first, again, strict=True):
        assert after == pytest.approx(before, abs=1e-5)


def test_a_rank_without_samples_spoils_no_number():
    plan = replace(SCHEDULED, batch=BatchPlan(samples=(6, 6, 0, 0)))
    known = Known(model=ModelSizes.of(GRAPH))
    found = window(observed(make_simulated(), plan), plan, known)
    assert len(found.computing) == 2
    for numbers in Grid([plan], known).numbers(found):
        assert np.isfinite(numbers).all()


def test_what_a_cost_model_knows_of_a_job():
    """A slow host among fast ones: shards gain 1.5 over a ring of four, which sends 3/2 of the bytes over every link."""
    graph, cluster = make_graph(2), make_cluster([10 * MB, 10 * MB, 10 * MB, 1 * MB], latency_s=0.001)
    known = known_of(graph, cost_model(graph, cluster), "gloo")
    assert known.shards_gain == pytest.approx(1.5)
    assert known.message_s == pytest.approx(6 * 0.001)
    assert known_of(graph, None, "gloo") == Known(model=ModelSizes.of(graph))


def test_every_number_has_a_name():
    found = offered()
    numbers, rows = Grid(found.plans, seen(BUCKETED).known).numbers(seen(BUCKETED))
    assert numbers.shape == (len(WINDOW_FEATURES),)
    assert rows.shape == (len(found.plans), len(CANDIDATE_FEATURES))


def test_numbers_have_no_unit():
    """Everything a hundred times as fast, devices and links: the same numbers, where no absolute latency counts."""
    found = offered()
    known = Known(model=ModelSizes.of(GRAPH))
    slow = observed(make_simulated(), BUCKETED)
    fast = [
        replace(
            entry,
            **{
                name: getattr(entry, name) / 100
                for name in ("step_s", "compute_s", "forward_s", "backward_s", "wait_s")
            },
            parts=replace(
                entry.parts,
                **{
                    name: getattr(entry.parts, name) / 100
                    for name in ("flight_s", "queue_s", "service_s", "byte_seconds")
                },
            ),
        )
        for entry in slow
    ]
    grid = Grid(found.plans, known)
    for before, after in zip(
        grid.numbers(window(slow, BUCKETED, known)), grid.numbers(window(fast, BUCKETED, known)), strict=True
    ):
        assert after == pytest.approx(before, abs=1e-4)


def test_when_gradients_are_there_and_parameters_needed():
    sizes = ModelSizes.of(make_graph(4, param_bytes=MB))
    assert sizes.sizes_bytes == (MB,) * 4
    assert sizes.ready == pytest.approx((0.25, 0.5, 0.75, 1.0))
    assert sizes.needed == pytest.approx((0.75, 0.5, 0.25, 0.0))
    assert (sizes.ready_share(0.5), sizes.needed_share(0.5)) == (0.5, 0.75)
    assert sum(sizes.histogram()) == 1.0
