"""Grades of the meta-network on jobs that it was not trained on, beside other ways to choose a candidate.

A grade compares predicted and simulated gains over the candidates of a window: Spearman's rank correlation, and the regret,
the throughput lost by running the candidate with the best prediction. The others are: always the default, always the
running plan, a random candidate, the analytic model, untrained networks, and the simulator itself. The simulator made the
data, so it runs under two handicaps: with true links that are off by the errors of a window's fit, and with the links that a
window shows, as in a real run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.online.features import CANDIDATE_FEATURES
from autotune.online.message_layout import Floats
from autotune.online.meta_network import MetaNetwork
from autotune.online.pretrain.cases import Example, Settings, example_of, simulate_job, step_times
from autotune.online.pretrain.random_clusters import with_link_factors, with_link_speed
from autotune.online.pretrain.random_jobs import Population, RandomJob, draw_job, simulator_of
from autotune.online.pretrain.random_models import seeded
from autotune.online.priors import seconds_per_byte
from autotune.online.window import Window
from autotune.results.judge.stats import spearman
from autotune.results.store.store import write_json
from autotune.workloads.cluster import Cluster

FIRST_GRADED = 10_000_000
"""Seeds from here on are used for grading only."""
POPULATIONS = {
    "seen models, seen networks": Population(),
    "new models": Population(new_models=True),
    "new networks": Population(new_networks=True),
    "new models, new networks": Population(new_models=True, new_networks=True),
}
OURS = "**the meta-network**"
_RUNNING = 0
_NUM_UNTRAINED = 10
_VERSION = 3
"""Of the grading: stored grades of another version are not read."""

Scores = NDArray[np.floating[Any]]
Scorer = Callable[[Example], Scores]
"""A score for each candidate; the largest is chosen."""
Grades = dict[str, float | None]
"""By measure; None where a measure does not apply."""


def grade(network: MetaNetwork, settings: Settings, report: Callable[[str], None]) -> dict[str, dict[str, Grades]]:
    """Grades by population and scorer. They are stored by the digest of the weights."""
    weights, graded = hashlib.sha256(network.to_bytes()).hexdigest()[:12], {}
    sizes = f"{settings.graded_jobs}-{settings.graded_tried}"
    for number, (name, population) in enumerate(POPULATIONS.items()):
        path = settings.kept / f"grades{_VERSION}-{weights}-{sizes}-{number}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, grade_population(network, population, settings))
        graded[name] = json.loads(path.read_text(encoding="utf-8"))
        report(f"graded: {name}")
    return graded


def grade_population(network: MetaNetwork, population: Population, settings: Settings) -> dict[str, Grades]:
    """Grades of all scorers on jobs of one population."""
    seeds = range(FIRST_GRADED, FIRST_GRADED + settings.graded_jobs)
    jobs = [draw_job(seed, population, settings.graded_tried) for seed in seeds]
    examples = [example_of(job, simulate_job(job)) for job in jobs]
    link_errors = [_link_error(one.job, one.seen) for one in examples]
    graded = {
        name: _grades([(scorer(one), one.gains) for one in examples])
        for name, scorer in scorers(network, link_errors).items()
    }
    estimates = [network.predict(one.window, one.rows) for one in examples]
    errors = [np.abs(found.mean - one.gains) for found, one in zip(estimates, examples, strict=True)]
    inside = [error <= found.spread for found, error in zip(estimates, errors, strict=True)]
    graded[OURS] |= {
        "within_one_spread": float(np.mean(np.concatenate(inside))),
        "median_error": float(np.median(np.concatenate(errors))),
        "link_error_median": float(np.median(np.abs(link_errors))),
        "link_error_rms": float(np.sqrt(np.mean(np.square(link_errors)))),
    }
    return graded


def scorers(network: MetaNetwork, link_errors: Sequence[float]) -> dict[str, Scorer]:
    """The ways to choose a candidate, by name."""
    # Random weights may rank plans well by chance: windows use different ones.
    untrained = [MetaNetwork.cold(seed) for seed in range(_NUM_UNTRAINED)]
    analytic = CANDIDATE_FEATURES.index("guess_gain_overlapped")
    return {
        "always the running plan": lambda one: _only(_RUNNING, one.job),
        "always the default": lambda one: _only(one.job.default, one.job),
        "a random candidate": lambda one: np.random.default_rng(one.job.seed).random(len(one.job.plans)),
        "untrained networks": lambda one: untrained[one.job.seed % _NUM_UNTRAINED].predict(one.window, one.rows).mean,
        "the analytic model": lambda one: one.rows[:, analytic],
        OURS: lambda one: network.predict(one.window, one.rows).mean,
        "the meta-network, if certain": lambda one: _if_certain(network, one),
        "the simulator, links as a window shows them": lambda one: _simulated(one.job, shown_links(one.job, one.seen)),
        "the simulator, true links off by a window's error": lambda one: _simulated(
            one.job, disturbed_links(one.job, link_errors)
        ),
        "the simulator, true links": lambda one: _simulated(one.job, one.job.cluster),
    }


def shown_links(job: RandomJob, seen: Window) -> Cluster:
    """Equal links on which the running collective is as fast as the window shows."""
    unit = with_link_speed(job.cluster, 1.0)
    speed = seen.network.bytes_per_s * seconds_per_byte(seen.collective, unit) if seen.network else 1e12
    return with_link_speed(job.cluster, speed)


def disturbed_links(job: RandomJob, link_errors: Sequence[float]) -> Cluster:
    """The true links, each off by the error of a random window: most errors are small, and their distribution has heavy tails."""
    draw = seeded(f"misjudged {job.seed}")
    return with_link_factors(job.cluster, [math.exp(draw.choice(link_errors)) for _ in job.cluster.hosts])


def _simulated(job: RandomJob, cluster: Cluster) -> Floats:
    return -step_times(simulator_of(job, cluster), job)


def _only(index: int, job: RandomJob) -> Floats:
    """Scores that choose one candidate and do not rank the others."""
    return -np.abs(np.arange(len(job.plans)) - index).clip(0, 1).astype(np.float64)


def _if_certain(network: MetaNetwork, one: Example) -> Floats:
    estimate = network.predict(one.window, one.rows)
    return _only(estimate.pick(running=_RUNNING, default=one.job.default), one.job)


def _link_error(job: RandomJob, seen: Window) -> float:
    """log(fitted bandwidth / true bandwidth) of the running collective."""
    if seen.network is None:
        return 0.0
    return math.log(seen.network.bytes_per_s * seconds_per_byte(seen.collective, job.cluster))


def _grades(scored: Sequence[tuple[Scores, Floats]]) -> Grades:
    regrets = [1 - math.exp(gains[scores.argmax()] - gains.max()) for scores, gains in scored]
    correlations = [  # a scorer that chooses one candidate does not rank the others
        spearman(scores.tolist(), gains.tolist())
        for scores, gains in scored
        if len(set(scores.tolist())) > 2 and np.ptp(gains)
    ]
    return {
        "spearman": float(np.median(correlations)) if correlations else None,
        "mean_regret": float(np.mean(regrets)),
        "median_regret": float(np.median(regrets)),
        "p90_regret": float(np.percentile(regrets, 90)),
    }
