"""A small job and the statistics of its steps, for the tests of this folder."""

from __future__ import annotations

from autotune.online.candidates import candidates
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Priors
from autotune.online.simulated_steps import simulated_step
from autotune.online.window import window
from autotune.space.space import Space, configurations, max_bucket_log2
from autotune.workloads.plan import lossless_codecs
from autotune.workloads.split import bounds
from tests.autotune.simulate.test_closed_forms import MB, make_cluster, make_graph, make_simulator

SAMPLES = (4, 4, 2, 2)
GRAPH = make_graph(8, param_bytes=4 * MB)


def make_space(num_ranks=4, codecs=None, graph=GRAPH):
    return Space(
        global_batch=12,
        limits=bounds(num_ranks, 12),
        reference=(1.0,) * num_ranks,
        transports=("gloo",),
        codecs=codecs or lossless_codecs(),
        max_bucket_log2=max_bucket_log2(graph.param_bytes),
        **configurations(num_ranks, ("gloo",)),
    )


def make_simulated(speed=1 * MB):
    return make_simulator(GRAPH, make_cluster([speed] * 4), sum(SAMPLES))


def make_candidates(**changes):
    return candidates(make_space(**changes), SAMPLES, transport="gloo")


def observed(simulator, plan, num_steps=5):
    """The same step several times."""
    simulated = simulator.simulate(plan)
    return [
        entry
        for step in range(num_steps)
        for entry in simulated_step(simulated, plan, simulator.wire_bytes(plan), step=step)
    ]


def seen(plan, speed=1 * MB, **priors):
    simulator = make_simulated(speed)
    return window(observed(simulator, plan), plan, Priors(model=ModelSizes.of(GRAPH), **priors))
