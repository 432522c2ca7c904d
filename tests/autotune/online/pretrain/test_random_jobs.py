"""Random jobs: reproducible from a seed, valid, and drawn from the right population."""

from __future__ import annotations

import pytest

from autotune.online.pretrain.random_clusters import HELD_OUT_BANDS, HELD_OUT_SIZES, link_of, with_link_factors
from autotune.online.pretrain.random_jobs import Population, draw_job, observed, simulator_of, window_of
from autotune.workloads.serial import digest

SEEDS = range(12)
SIZES = (3, 111_360, (3, 4, 5))
"""Ranks, bytes and samples of one job."""
PLANS = "f097fa3bb69c"
"""Digest of its plans."""


@pytest.mark.parametrize("population", [Population(), Population(new_models=True, new_networks=True)])
def test_a_seed_and_a_population_make_one_job(population: Population) -> None:
    for seed in SEEDS:
        job = draw_job(seed, population, 6)
        assert job == draw_job(seed, population, 6)
        assert job.graph != draw_job(seed + 1, population, 6).graph


def test_jobs_are_those_that_the_shipped_weights_were_trained_on() -> None:
    """A change of the draws would make the stored jobs and the card of the weights wrong."""
    job = draw_job(3, Population(), 6)
    assert (len(job.cluster.devices), job.graph.param_bytes, job.running.batch.samples) == SIZES
    assert digest([plan.fingerprint() for plan in job.plans]) == PLANS


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_are_valid_and_the_running_plan_is_first(seed: int) -> None:
    job = draw_job(seed, Population(), 8)
    samples = job.running.batch.samples
    assert len(set(job.plans)) == len(job.plans) <= 8
    assert job.plans[job.default].comm.reducer in ("bucketed", "ddp")
    for plan in job.plans:
        plan.validate(num_ranks=len(samples), global_batch=sum(samples))


@pytest.mark.parametrize("seed", SEEDS)
def test_held_out_networks_are_not_trained_on(seed: int) -> None:
    trained, held_out = (draw_job(seed, Population(new_networks=new), 4) for new in (False, True))
    assert len(trained.cluster.devices) not in HELD_OUT_SIZES
    assert len(held_out.cluster.devices) in HELD_OUT_SIZES
    lowest, highest = HELD_OUT_BANDS[0][0] / 20, HELD_OUT_BANDS[-1][1] * 4
    assert all(lowest < link_of(host).up_bytes_per_s < highest for host in held_out.cluster.hosts)


def test_a_window_measures_the_noisy_steps_of_the_running_plan() -> None:
    job = draw_job(5, Population(), 4)
    simulator = simulator_of(job)
    seen = window_of(job, observed(simulator, job.running))
    assert 5 <= seen.num_steps <= 10
    assert seen.step_s == pytest.approx(simulator.step_s(job.running), rel=0.2)
    assert seen == window_of(job, observed(simulator, job.running))


def test_slower_links_make_slower_steps() -> None:
    job = draw_job(5, Population(), 4)
    slower = with_link_factors(job.cluster, [0.1] * len(job.cluster.hosts))
    assert simulator_of(job, slower).step_s(job.running) > simulator_of(job).step_s(job.running)
