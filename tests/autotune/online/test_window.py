"""Windows measure the links, do not depend on the order of ranks, and tolerate a disturbed step."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from autotune.online.features import CANDIDATE_FEATURES, WINDOW_FEATURES, FeatureTable
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Priors, priors_of
from autotune.online.window import fit_network, window
from autotune.profilers.step_stats import Part, PartSums
from autotune.simulate.cost_sources import cost_model
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from tests.autotune.online.jobs import GRAPH, SAMPLES, make_candidates, make_simulated, observed, seen
from tests.autotune.simulate.test_closed_forms import MB, make_cluster, make_graph

SCHEDULED = Plan(
    batch=BatchPlan(samples=SAMPLES),
    comm=CommPlan(reducer="scheduled", partition_bytes=MB, credit_bytes=MB, crosses_steps=True),
)
BUCKETED = Plan(batch=BatchPlan(samples=SAMPLES), comm=CommPlan(bucket_bytes=8 * MB))


def parts_over(bytes_per_s, latency_s, sizes):
    """Messages one after another."""
    at, parts = 0.0, []
    for size in sizes:
        end = at + latency_s + size / bytes_per_s
        parts.append(Part(size, at, at, end))
        at = end
    return PartSums.of(parts)


def test_a_line_through_parts_of_different_sizes():
    network = fit_network([parts_over(2e6, 0.01, [1e5, 1e6, 4e6])] * 3)
    assert (network.bytes_per_s, network.latency_s) == pytest.approx((2e6, 0.01))


def test_the_latency_of_messages_of_one_size_is_the_prior():
    steps = [parts_over(2e6, 0.01, [1e6] * 4)]
    assert fit_network(steps).latency_s == 0
    fitted = fit_network(steps, message_s=0.01)
    assert (fitted.bytes_per_s, fitted.latency_s) == pytest.approx((2e6, 0.01))


def test_a_disturbed_step_does_not_bend_the_line():
    usual, disturbed = parts_over(2e6, 0.01, [1e5, 1e6]), parts_over(1e5, 0.5, [1e5, 1e6])
    assert fit_network([usual, disturbed, usual]).bytes_per_s == pytest.approx(2e6)


def test_no_network_without_messages():
    assert fit_network([PartSums()]) is None
    assert fit_network([]) is None


@pytest.mark.parametrize("plan", [SCHEDULED, BUCKETED])
def test_the_links_of_a_simulated_run_are_measured(plan):
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
        window(steps[:-1], BUCKETED, Priors(model=ModelSizes.of(GRAPH)))


def test_features_do_not_depend_on_the_order_of_ranks():
    """Ranks renumbered, their observations shuffled, the split with them."""
    renumbered = (2, 3, 0, 1)
    priors, steps = Priors(model=ModelSizes.of(GRAPH)), observed(make_simulated(), SCHEDULED)
    renamed = [replace(entry, rank=renumbered[entry.rank]) for entry in steps]
    random.Random(1).shuffle(renamed)
    samples = tuple(SAMPLES[renumbered.index(rank)] for rank in range(4))
    moved = replace(SCHEDULED, batch=BatchPlan(samples=samples))
    plans = [SCHEDULED, BUCKETED]
    first = FeatureTable(plans, priors).features(window(steps, SCHEDULED, priors))
    again = FeatureTable([replace(plan, batch=moved.batch) for plan in plans], priors).features(
        window(renamed, moved, priors)
    )
    for before, after in zip(first, again, strict=True):
        assert after == pytest.approx(before, abs=1e-5)


def test_features_are_finite_with_a_rank_without_samples():
    plan = replace(SCHEDULED, batch=BatchPlan(samples=(6, 6, 0, 0)))
    priors = Priors(model=ModelSizes.of(GRAPH))
    found = window(observed(make_simulated(), plan), plan, priors)
    assert len(found.computing) == 2
    for features in FeatureTable([plan], priors).features(found):
        assert np.isfinite(features).all()


def test_priors_of_a_cost_model():
    """A slow host among fast ones: shards gain 1.5 over a ring of four, which sends 3/2 of the bytes over every link."""
    graph, cluster = make_graph(2), make_cluster([10 * MB, 10 * MB, 10 * MB, 1 * MB], latency_s=0.001)
    priors = priors_of(graph, cost_model(graph, cluster), "gloo")
    assert priors.shards_gain == pytest.approx(1.5)
    assert priors.message_s == pytest.approx(6 * 0.001)
    assert priors_of(graph, None, "gloo") == Priors(model=ModelSizes.of(graph))


def test_every_feature_has_a_name():
    found = make_candidates()
    features, rows = FeatureTable(found.plans, seen(BUCKETED).priors).features(seen(BUCKETED))
    assert features.shape == (len(WINDOW_FEATURES),)
    assert rows.shape == (len(found.plans), len(CANDIDATE_FEATURES))


def test_features_are_dimensionless():
    """Everything a hundred times as fast, devices and links: the same features, without an absolute latency."""
    found = make_candidates()
    priors = Priors(model=ModelSizes.of(GRAPH))
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
    table = FeatureTable(found.plans, priors)
    for before, after in zip(
        table.features(window(slow, BUCKETED, priors)), table.features(window(fast, BUCKETED, priors)), strict=True
    ):
        assert after == pytest.approx(before, abs=1e-4)


def test_when_gradients_are_ready_and_parameters_needed():
    sizes = ModelSizes.of(make_graph(4, param_bytes=MB))
    assert sizes.sizes_bytes == (MB,) * 4
    assert sizes.ready == pytest.approx((0.25, 0.5, 0.75, 1.0))
    assert sizes.needed == pytest.approx((0.75, 0.5, 0.25, 0.0))
    assert (sizes.ready_share(0.5), sizes.needed_share(0.5)) == (0.5, 0.75)
    assert sum(sizes.histogram()) == 1.0
