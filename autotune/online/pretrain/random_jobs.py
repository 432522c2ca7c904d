"""Random jobs for pre-training: a model, a cluster, a split, a running plan, and candidates.

Everything follows from a seed, so only the simulated times of a job are stored. Device speeds follow from a random ratio
of communication to computing: that ratio decides what a schedule can gain, and with independent speeds most jobs would be
dominated by one of the two.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from autotune.online.candidates import candidates
from autotune.online.model_sizes import ModelSizes
from autotune.online.pretrain.random_clusters import (
    draw_cluster,
    draw_rank_counts,
    with_device_speeds,
    with_link_factors,
)
from autotune.online.pretrain.random_models import draw_model, log_uniform, seeded
from autotune.online.priors import Priors, seconds_per_byte, shards_gain
from autotune.online.simulated_steps import simulated_step
from autotune.online.window import Window, window
from autotune.profilers.step_stats import PartSums, StepStats
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.collectives import all_reduce_latency_s
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.cost_tables import Costs, Lines, TransportCosts
from autotune.simulate.roofline import compute_s
from autotune.simulate.simulator import Simulator
from autotune.space.space import Space, configurations, max_bucket_log2
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CODECS, BatchPlan, Plan, default_plan, lossless_codecs, one_round_codecs
from autotune.workloads.split import bounds, proportional


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Which models and networks a job is drawn from."""

    new_models: bool = False
    """Models that are held out from training."""
    new_networks: bool = False
    """Link speeds and numbers of ranks that are held out from training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomJob:
    """One job, before it is simulated."""

    graph: OpGraph
    cluster: Cluster
    costs_seed: int
    priors: Priors
    plans: tuple[Plan, ...]
    """The candidates to simulate: the running plan first, then the default, if that is another one."""
    default: int
    seed: int

    @property
    def running(self) -> Plan:
        return self.plans[0]


def draw_job(seed: int, population: Population, num_tried: int) -> RandomJob:
    """The job of a seed; populations do not share draws."""
    # The text is part of the seed: another one would draw other jobs than those of the shipped weights.
    text = f"Split(new_models={population.new_models}, new_networks={population.new_networks})"
    draw = seeded(f"{seed} {text}")
    graph = draw_model(draw, held_out=population.new_models)
    counts = draw_rank_counts(draw, held_out=population.new_networks)
    num_ranks = sum(counts)
    cluster = draw_cluster(draw, counts, held_out=population.new_networks)
    batch = num_ranks * draw.choice((4, 8, 16, 32))
    speeds = [(device.flops_per_s or 0.0) * draw.uniform(0.9, 1.1) for device in cluster.devices]
    weights = speeds if draw.random() < 0.6 else [1.0] * num_ranks
    samples = proportional(weights, batch, bounds(num_ranks, batch))
    cluster = _with_ratio(cluster, graph, samples, ratio=log_uniform(draw, 0.05, 20))
    transport = "gloo" if draw.random() < 0.8 else "mpi"
    lossless, one_round = lossless_codecs(), one_round_codecs()
    codecs = draw.choice((lossless, lossless, one_round, one_round, CODECS.names()))
    bucket_log2 = max_bucket_log2(graph.param_bytes)
    grid = _grid(num_ranks, transport, codecs, bucket_log2, draw.random() < 0.3 and min(samples) > 0)
    running = 0 if draw.random() < 0.4 else draw.randrange(len(grid))
    others = [index for index in range(len(grid)) if index not in (0, running)]
    tried = dict.fromkeys([running, 0, *draw.sample(others, min(num_tried - 1, len(others)))])
    costs_seed = draw.randrange(2**31)
    codec_s = _codec_s_per_byte(costs_seed, cluster, graph, samples)
    return RandomJob(
        graph=graph,
        cluster=cluster,
        costs_seed=costs_seed,
        priors=_priors(draw, graph, cluster, costs_seed, codec_s),
        plans=tuple(replace(grid[index], batch=BatchPlan(samples=samples)) for index in tuple(tried)[:num_tried]),
        default=tuple(tried).index(0),
        seed=seed,
    )


@cache
def _grid(num_ranks: int, transport: str, codecs: tuple[str, ...], bucket_log2: int, has_ddp: bool) -> tuple[Plan, ...]:
    """The candidates of a job, without its split."""
    samples, sends = (1,) * num_ranks, configurations(num_ranks, ("gloo",))
    space = Space(
        global_batch=num_ranks,
        limits=bounds(num_ranks, num_ranks),
        reference=(1.0,) * num_ranks,
        transports=(transport,),
        codecs=codecs,
        max_bucket_log2=bucket_log2,
        reducers=sends["reducers"],
        collectives=sends["collectives"],
    )
    default = default_plan(samples, transport=transport) if has_ddp else None
    return candidates(space, samples, transport=transport, default=default).plans


def simulator_of(job: RandomJob, cluster: Cluster | None = None) -> Simulator:
    """The simulator of a job, on its own cluster or on another one."""
    graph, samples = job.graph, job.running.batch.samples
    info = WorkloadInfo(
        name="random",
        options={},
        fingerprint="",
        global_batch=sum(samples),
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
    )
    return Simulator(info, graph, _costs(job, cost_model(graph, cluster or job.cluster)))


def observed(simulator: Simulator, plan: Plan) -> list[StepStats]:
    """The statistics of one simulated step, without noise."""
    return simulated_step(simulator.simulate(plan), plan, simulator.wire_bytes(plan))


def window_of(job: RandomJob, step: list[StepStats]) -> Window:
    """A window of 5 to 10 noisy copies of a step."""
    draw = seeded(f"noise {job.seed}")
    noise = log_uniform(draw, 0.002, 0.06)
    copies = []
    for number in range(draw.randint(5, 10)):
        whole = math.exp(draw.gauss(0, noise))
        copies += [_noisy(entry, number, whole, draw, noise) for entry in step]
    return window(copies, job.running, job.priors)


def _noisy(entry: StepStats, number: int, whole: float, draw: random.Random, noise: float) -> StepStats:
    """`whole`: the factor of all ranks in this step."""
    own = math.exp(draw.gauss(0, noise))
    parts, wire = entry.parts, whole * math.exp(draw.gauss(0, noise))
    compute_s = entry.compute_s * own
    step_s = max(entry.step_s * whole, compute_s)
    return replace(
        entry,
        step=number,
        step_s=step_s,
        compute_s=compute_s,
        forward_s=entry.forward_s * own,
        backward_s=entry.backward_s * own,
        wait_s=step_s - compute_s,
        stalled_s=min(entry.stalled_s * whole, step_s - compute_s),
        parts=PartSums(
            num_parts=parts.num_parts,
            flight_s=parts.flight_s * wire,
            queue_s=parts.queue_s * whole,
            num_bytes=parts.num_bytes,
            service_s=parts.service_s * wire,
            square_bytes=parts.square_bytes,
            byte_seconds=parts.byte_seconds * wire,
        ),
    )


def _busy_s(graph: OpGraph, cluster: Cluster, samples: tuple[int, ...]) -> float:
    """Compute time of the slowest rank."""
    return max(compute_s(graph, device, count) for device, count in zip(cluster.devices, samples, strict=True))


def _with_ratio(cluster: Cluster, graph: OpGraph, samples: tuple[int, ...], *, ratio: float) -> Cluster:
    """Device speeds such that a ring all-reduce of all gradients takes `ratio` times the slowest rank's compute time."""
    wire_s = seconds_per_byte("ring", cluster) * graph.param_bytes
    return with_device_speeds(cluster, _busy_s(graph, cluster, samples) * ratio / wire_s)


def _priors(
    draw: random.Random, graph: OpGraph, cluster: Cluster, costs_seed: int, codec_s: dict[str, float]
) -> Priors:
    """Priors of a job: some know the links, and some of these know them from before one of them changed."""
    kind, gain = draw.random(), None
    if kind < 0.6:
        factors = [1.0] * len(cluster.hosts)
        if kind < 0.25:
            changed = draw.randrange(len(factors))
            factors[changed] = log_uniform(draw, 0.2, 5)
        gain = shards_gain(with_link_factors(cluster, factors))
    message_s = _message_s(costs_seed) + all_reduce_latency_s("ring", cluster)
    return Priors(
        model=ModelSizes.of(graph),
        shards_gain=gain,
        message_s=message_s * log_uniform(draw, 0.7, 1.4) if draw.random() < 0.6 else None,
        codec_s_per_byte=codec_s if draw.random() < 0.7 else {},
    )


def _message_s(costs_seed: int) -> float:
    """Fixed cost of a message, without the links' latency."""
    return log_uniform(seeded(f"messages {costs_seed}"), 1e-5, 1.5e-3)


def _codec_s_per_byte(seed: int, cluster: Cluster, graph: OpGraph, samples: tuple[int, ...]) -> dict[str, float]:
    """Seconds per byte of encoding plus decoding: from almost nothing to half the compute time."""
    draw = seeded(f"codecs {seed}")
    usual = _busy_s(graph, cluster, samples) / graph.param_bytes * log_uniform(draw, 0.005, 0.5)
    return {codec: usual * log_uniform(draw, 0.5, 2) for codec in CODECS if codec != "none"}


def _costs(job: RandomJob, costs: Costs) -> Costs:
    """A cost model with the costs that no datasheet states: codecs, the update, and the fixed cost of messages."""
    draw, size = seeded(f"costs {job.costs_seed}"), len(job.cluster.devices)
    samples = job.running.batch.samples
    codec_s = _codec_s_per_byte(job.costs_seed, job.cluster, job.graph, samples)
    zeros = np.zeros(size)
    lines = {codec: Lines(fixed_s=zeros, slope_s=np.full(size, seconds / 2)) for codec, seconds in codec_s.items()}
    message_s, byte_s = _message_s(job.costs_seed), log_uniform(draw, 1e-12, 3e-10)
    overhead = TransportCosts(
        sizes=np.array([0.0, 1e8]), overhead_s=np.array([message_s, message_s + 1e8 * byte_s]), slots=2
    )
    busy_s = _busy_s(job.graph, job.cluster, samples)
    return replace(
        costs,
        encode=lines,
        decode=lines,
        update=Lines(fixed_s=np.full(size, busy_s * draw.uniform(0, 0.08)), slope_s=zeros),
        transports={"gloo": overhead, "mpi": replace(overhead, slots=1)},
    )
