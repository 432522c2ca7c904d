"""Random jobs for pre-training: a model, a cluster, a split, the plan that runs, and plans that could.

Everything follows from a seed, so that only what the simulator says of a job needs to be kept. Models are captured ones
of our own families, widened and rescaled, and made-up ones; clusters are of 2 to 8 ranks with uneven speeds and links.
Compute speeds follow from a drawn ratio of communication to computing: that decides what a schedule can win, and drawn
apart most jobs would be all one or all the other.

Held out from training are a family of real models and a kind of made-up ones, two bands of link speeds, and two world
sizes: `Split` says which of them a job is drawn from.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from autotune.jobs.context import capture_workload
from autotune.online.candidates import candidates
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Known, seconds_per_byte, shards_gain
from autotune.online.simulated_steps import simulated_step
from autotune.online.window import Window, window
from autotune.profilers.step_stats import PartSums, StepStats
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.collectives import all_reduce_latency_s
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.cost_tables import Costs, Lines, TransportCosts
from autotune.simulate.roofline import compute_s
from autotune.simulate.simulator import Simulator
from autotune.space.space import Space, max_bucket_log2, ways_to_send
from autotune.workloads.cluster import Cluster, Device, Host, Link
from autotune.workloads.graph import Op, OpGraph, Parameter
from autotune.workloads.plan import CODECS, LOSSLESS_CODECS, ONE_ROUND_CODECS, BatchPlan, Plan, default_plan
from autotune.workloads.registry import load_workload
from autotune.workloads.split import bounds, proportional

TRAINED_MODELS = ("mlp-small", "mlp-large", "vgg-tiny", "vgg-small", "gpt-tiny", "gpt-small", "growing", "even")
HELD_OUT_MODELS = ("resnet-tiny", "resnet-small", "waves")
MBIT = 1e6 / 8
HELD_OUT_BANDS = ((200 * MBIT, 400 * MBIT), (4000 * MBIT, 8000 * MBIT))
HELD_OUT_SIZES = (5, 7)
SLOWEST, FASTEST = 50 * MBIT, 25_000 * MBIT
_MOST_MODEL_BYTES = 2e9


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where a job is drawn from."""

    new_models: bool = False
    new_networks: bool = False


@dataclass(frozen=True, kw_only=True)
class RandomJob:
    """One job, before anything is simulated."""

    graph: OpGraph
    cluster: Cluster
    costs_seed: int
    known: Known
    plans: tuple[Plan, ...]
    """The candidates whose speed is asked for: the plan that runs first, then, unless it is the same, the default."""
    default: int
    seed: int

    @property
    def running(self) -> Plan:
        return self.plans[0]

    @property
    def model(self) -> ModelSizes:
        return self.known.model


def draw_job(seed: int, split: Split, num_tried: int) -> RandomJob:
    """The job of a seed; seeds of different splits do not share draws."""
    draw = random.Random(f"{seed} {split}")
    graph = _model(draw, split)
    counts = _rank_counts(draw, split)
    num_ranks = sum(counts)
    cluster = _cluster(draw, split, counts)
    batch = num_ranks * draw.choice((4, 8, 16, 32))
    speeds = [device.flops_per_s * draw.uniform(0.9, 1.1) for device in cluster.devices]
    weights = speeds if draw.random() < 0.6 else [1.0] * num_ranks
    samples = proportional(weights, batch, bounds(num_ranks, batch))
    cluster = _slowed(cluster, graph, samples, ratio=_log_uniform(draw, 0.05, 20))
    transport = "gloo" if draw.random() < 0.8 else "mpi"
    codecs = draw.choice((LOSSLESS_CODECS, LOSSLESS_CODECS, ONE_ROUND_CODECS, ONE_ROUND_CODECS, CODECS))
    bucket_log2 = max_bucket_log2(graph.param_bytes)
    offered = _offered(num_ranks, transport, codecs, bucket_log2, draw.random() < 0.3 and min(samples) > 0)
    running = 0 if draw.random() < 0.4 else draw.randrange(len(offered))
    others = [index for index in range(len(offered)) if index not in (0, running)]
    tried = dict.fromkeys([running, 0, *draw.sample(others, min(num_tried - 1, len(others)))])
    batch_plan = BatchPlan(samples=samples)
    costs_seed = draw.randrange(2**31)
    return RandomJob(
        graph=graph,
        cluster=cluster,
        costs_seed=costs_seed,
        known=_known(draw, graph, cluster, costs_seed, _costs_of_codecs(costs_seed, cluster, graph, samples)),
        plans=tuple(replace(offered[index], batch=batch_plan) for index in tuple(tried)[:num_tried]),
        default=tuple(tried).index(0),
        seed=seed,
    )


@cache
def _offered(
    num_ranks: int, transport: str, codecs: tuple[str, ...], bucket_log2: int, has_ddp: bool
) -> tuple[Plan, ...]:
    """The candidates of a job, but for its split."""
    samples = (1,) * num_ranks
    space = Space(
        global_batch=num_ranks,
        limits=bounds(num_ranks, num_ranks),
        reference=(1.0,) * num_ranks,
        transports=(transport,),
        codecs=codecs,
        max_bucket_log2=bucket_log2,
        **ways_to_send(num_ranks, ("gloo",)),
    )
    default = default_plan(samples, transport=transport) if has_ddp else None
    return candidates(space, samples, transport=transport, default=default).plans


def simulator_of(job: RandomJob, cluster: Cluster | None = None) -> Simulator:
    """The simulator of a job; of the same job on another cluster, where one is given."""
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
    """What the ranks would report of one step, undisturbed."""
    return simulated_step(simulator.simulate(plan), plan, simulator.wire_bytes(plan))


def disturbed(job: RandomJob, step: list[StepStats]) -> list[StepStats]:
    """5 to 10 noisy copies of a step, as a run would show it."""
    draw = random.Random(f"noise {job.seed}")
    noise = _log_uniform(draw, 0.002, 0.06)
    copies = []
    for number in range(draw.randint(5, 10)):
        whole = math.exp(draw.gauss(0, noise))
        copies += [_noisy(entry, number, whole, math.exp(draw.gauss(0, noise)), draw, noise) for entry in step]
    return copies


def window_of(job: RandomJob, step: list[StepStats]) -> Window:
    return window(disturbed(job, step), job.running, job.known)


def _noisy(  # noqa: PLR0913, PLR0917 - one step, and what disturbs it
    entry: StepStats, number: int, whole: float, own: float, draw: random.Random, noise: float
) -> StepStats:
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


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


# Models.


@cache
def _captured(name: str) -> OpGraph:
    graph = capture_workload(load_workload(name), 0)
    return replace(graph, ops=tuple(replace(op, factor_shapes=()) for op in graph.ops))


def _model(draw: random.Random, split: Split) -> OpGraph:
    name = draw.choice(HELD_OUT_MODELS if split.new_models else TRAINED_MODELS)
    if name in ("growing", "even", "waves"):
        return _made_up(draw, name)
    graph = _captured(name)
    most = max(min(_MOST_MODEL_BYTES / graph.param_bytes, 64), 1)
    return _widened(graph, round(_log_uniform(draw, 1, most)), _log_uniform(draw, 0.25, 4))


def _widened(graph: OpGraph, times: int, busier: float) -> OpGraph:
    """Every tensor so many times as large, and ops busier in proportion to that and more."""
    parameters = tuple(
        replace(entry, num_bytes=entry.num_bytes * times, shape=(entry.shape[0] * times, *entry.shape[1:]))
        if entry.shape
        else replace(entry, num_bytes=entry.num_bytes * times)
        for entry in graph.parameters
    )
    ops = tuple(
        replace(
            op,
            param_bytes=op.param_bytes * times,
            flops_per_sample=op.flops_per_sample * (times * busier if op.param_bytes else busier),
            bytes_per_sample=op.bytes_per_sample * busier,
        )
        for op in graph.ops
    )
    return replace(graph, ops=ops, parameters=parameters)


def _made_up(draw: random.Random, kind: str) -> OpGraph:
    """Layers whose parameters grow while their arithmetic shrinks (classifiers), are alike, or go up and down."""
    num_ops, weight = draw.randint(3, 60), _log_uniform(draw, 3e4, 3e6)
    slope, period = draw.uniform(0, 6), draw.uniform(2, 12)
    ops, parameters = [], []
    for index in range(num_ops):
        place = index / num_ops
        shape = {"growing": slope * place, "even": 0.0, "waves": slope * math.sin(index / period) / 2}[kind]
        rows = max(round(weight * math.exp(shape + draw.gauss(0, 0.3)) / 256), 1)
        name = f"layer{index}"
        tensors = [(rows, 64)] + [(rows,)] * (draw.random() < 0.7) + [(64,)] * (draw.random() < 0.3)
        sizes = [4 * math.prod(tensor) for tensor in tensors]
        parameters += [
            Parameter(name=f"{name}.{number}", op=name, num_bytes=size, shape=tensor)
            for number, (size, tensor) in enumerate(zip(sizes, tensors, strict=True))
        ]
        ops.append(
            Op(
                name=name,
                kind="Linear",
                num_calls=1,
                flops_per_sample=1e7 * math.exp(draw.uniform(-1, 1) - draw.uniform(0, 1) * shape),
                fixed_bytes=float(sum(sizes)),
                bytes_per_sample=1e4,
                param_bytes=sum(sizes),
                backward_factor=1.0 if index == 0 else 2.0,
            )
        )
    return OpGraph(ops=tuple(ops), saved_bytes_per_sample=0.0, parameters=tuple(parameters))


# Clusters.


def _rank_counts(draw: random.Random, split: Split) -> list[int]:
    """Ranks of each host; of two hosts at least."""
    sizes = HELD_OUT_SIZES if split.new_networks else [n for n in range(2, 9) if n not in HELD_OUT_SIZES]
    num_ranks = draw.choice(sizes)
    if draw.random() < 0.7:
        return [1] * num_ranks
    first = draw.randint(1, num_ranks - 1)
    return [first, num_ranks - first]


def _link_speed(draw: random.Random, split: Split) -> float:
    if split.new_networks:
        return _log_uniform(draw, *draw.choice(HELD_OUT_BANDS))
    while True:
        speed = _log_uniform(draw, SLOWEST, FASTEST)
        if not any(low <= speed <= high for low, high in HELD_OUT_BANDS):
            return speed


def _cluster(draw: random.Random, split: Split, counts: list[int]) -> Cluster:
    usual, latency_s = _link_speed(draw, split), _log_uniform(draw, 5e-6, 2e-3)
    spread = draw.choice((0.0, 0.0, 0.5, 1.0))
    uneven = draw.random() < 0.5
    odd = draw.randrange(len(counts))
    slower = _log_uniform(draw, 1.5, 8) if draw.random() < 0.5 else 1.0
    hosts = []
    for index, count in enumerate(counts):
        speed = usual / (slower if index == odd else 1.0) * (math.exp(draw.gauss(0, 0.3)) if uneven else 1.0)
        devices = tuple(
            Device(
                name=f"device{index}-{number}",
                flops_per_s=(flops := 1e12 * math.exp(draw.gauss(0, spread / 2))),
                memory_bytes_per_s=flops / draw.uniform(1, 20),
            )
            for number in range(count)
        )
        link = Link(up_bytes_per_s=speed, down_bytes_per_s=speed * draw.choice((1.0, 1.0, 0.5)), latency_s=latency_s)
        hosts.append(Host(name=f"host{index}", devices=devices, link=link))
    return Cluster(name="random", hosts=tuple(hosts), emulation=draw.choice(("paced", "none")))


def _slowed(cluster: Cluster, graph: OpGraph, samples: tuple[int, ...], *, ratio: float) -> Cluster:
    """Device speeds such that a ring of all gradients takes `ratio` times as long as the slowest rank computes."""
    wire_s = seconds_per_byte("ring", cluster) * graph.param_bytes
    busy_s = max(compute_s(graph, device, count) for device, count in zip(cluster.devices, samples, strict=True))
    times = busy_s * ratio / wire_s
    hosts = tuple(
        replace(
            host,
            devices=tuple(
                replace(
                    device,
                    flops_per_s=device.flops_per_s * times,
                    memory_bytes_per_s=device.memory_bytes_per_s * times,
                )
                for device in host.devices
            ),
        )
        for host in cluster.hosts
    )
    return replace(cluster, hosts=hosts)


def _known(draw: random.Random, graph: OpGraph, cluster: Cluster, costs_seed: int, codec_s: dict[str, float]) -> Known:
    """What somebody would know of it: the links perhaps, and perhaps as they were before one of them changed."""
    kind, gain = draw.random(), None
    if kind < 0.6:
        hosts = list(cluster.hosts)
        if kind < 0.25:
            odd, times = draw.randrange(len(hosts)), _log_uniform(draw, 0.2, 5)
            link = hosts[odd].link
            changed = replace(
                link, up_bytes_per_s=link.up_bytes_per_s * times, down_bytes_per_s=link.down_bytes_per_s * times
            )
            hosts[odd] = replace(hosts[odd], link=changed)
        gain = shards_gain(replace(cluster, hosts=tuple(hosts)))
    message_s = _message_s(costs_seed) + all_reduce_latency_s("ring", cluster)
    return Known(
        model=ModelSizes.of(graph),
        shards_gain=gain,
        message_s=message_s * _log_uniform(draw, 0.7, 1.4) if draw.random() < 0.6 else None,
        codec_s_per_byte=codec_s if draw.random() < 0.7 else {},
    )


def _message_s(costs_seed: int) -> float:
    """What a message costs beyond its bytes and the links' latency."""
    return _log_uniform(random.Random(f"messages {costs_seed}"), 1e-5, 1.5e-3)


def _costs_of_codecs(seed: int, cluster: Cluster, graph: OpGraph, samples: tuple[int, ...]) -> dict[str, float]:
    """Seconds per byte, both ways together: from next to nothing to as long as the computing."""
    draw = random.Random(f"codecs {seed}")
    busy_s = max(compute_s(graph, device, count) for device, count in zip(cluster.devices, samples, strict=True))
    usual = busy_s / graph.param_bytes * _log_uniform(draw, 0.005, 0.5)
    return {codec: usual * _log_uniform(draw, 0.5, 2) for codec in CODECS if codec != "none"}


def _costs(job: RandomJob, costs: Costs) -> Costs:
    """With what a datasheet does not say: codecs, the update, and what a message costs beyond its bytes."""
    draw, size = random.Random(f"costs {job.costs_seed}"), len(job.cluster.devices)
    samples = job.running.batch.samples
    busy_s = max(compute_s(job.graph, device, n) for device, n in zip(job.cluster.devices, samples, strict=True))
    codec_s = _costs_of_codecs(job.costs_seed, job.cluster, job.graph, samples)
    nothing = np.zeros(size)
    lines = {codec: Lines(fixed_s=nothing, slope_s=np.full(size, seconds / 2)) for codec, seconds in codec_s.items()}
    message_s, byte_s = _message_s(job.costs_seed), _log_uniform(draw, 1e-12, 3e-10)
    overhead = TransportCosts(
        sizes=np.array([0.0, 1e8]), overhead_s=np.array([message_s, message_s + 1e8 * byte_s]), slots=2
    )
    return replace(
        costs,
        encode=lines,
        decode=lines,
        update=Lines(fixed_s=np.full(size, busy_s * draw.uniform(0, 0.08)), slope_s=nothing),
        transports={"gloo": overhead, "mpi": replace(overhead, slots=1)},
    )
