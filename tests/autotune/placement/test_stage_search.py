"""The search for stages against brute force, in tight memory, on published forms of plans, and at 64 devices."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from autotune.placement.stage_moves import moves, share_moves
from autotune.placement.stage_search import StageSearch
from autotune.placement.stage_seeds import lines
from autotune.placement.stage_shape import to_shape
from autotune.runtime.placed.plan_job import lanes_of
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.topology import Fabric, Link
from tests.autotune.placement.stage_cases import LeastSteps, cluster, every_plan, make_plan, model, simulator_of

WITHIN = 1.03
DEFAULT_CASES = 8
CASES = 60


def drawn(seed):
    """A simulator of at most 4 devices and 6 ops, where a stage may begin, and whether only plans that run are searched."""
    draw = random.Random(seed)
    num_devices, num_ops, batch = draw.choice((2, 3, 3, 4)), draw.randint(2, 6), draw.choice((4, 6, 8))
    graph, places = model(draw, num_ops)
    need = graph.held_bytes + graph.saved_bytes_per_sample * batch
    memory = draw.choice((None, None, need * 0.9, need * 0.5, need * 0.3, need * 0.2))
    return simulator_of(graph, cluster(draw, num_devices, memory), batch), places, seed % 3 == 0


def brute_force_s(simulator, below_s, *, runs_only):
    """The least step of a plan that fits, among those that could be below; infinite if there is none."""
    bounds, least_s = LeastSteps(simulator), math.inf
    for plan in every_plan(simulator, runs_only=runs_only):
        if bounds.least_s(plan) < min(below_s, least_s):
            simulated = simulator.simulate(plan)
            if simulated.step_s < min(below_s, least_s) and simulator.fits_in(
                simulator.peak_memory_bytes(plan, simulated)
            ):
                least_s = simulated.step_s
    return least_s


@pytest.mark.parametrize(
    "seed",
    [*range(DEFAULT_CASES), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(DEFAULT_CASES, CASES))],
)
def test_no_plan_is_better_by_more_than_three_percent(seed):
    """Over all cuts, assignments, groups, shares and micro-batches. Where any plan fits, one is found."""
    simulator, places, runs_only = drawn(seed)
    best = StageSearch(simulator, places, runs_only=runs_only).run()[0]
    ours_s = best.value[1] if best.value[0] == 0 else math.inf
    best.plan.validate(num_ranks=len(simulator.costs.cluster.devices), global_batch=simulator.info.global_batch)
    if runs_only:
        best.plan.check_runnable()
    if ours_s < math.inf:
        assert simulator.step_s(best.plan) == pytest.approx(ours_s, rel=1e-9)
        assert simulator.fits(best.plan)
    assert brute_force_s(simulator, ours_s / WITHIN, runs_only=runs_only) == math.inf


@pytest.mark.parametrize(
    ("hosts", "seed"),
    [(2, 0), *(pytest.param(hosts, seed, marks=pytest.mark.slow) for hosts in (2, 4) for seed in range(1, 5))],
)
def test_where_a_plan_fits_one_is_found(hosts, seed):
    """Devices with just the memory that some plan takes, a stage on each: most other plans do not fit."""
    draw, size = random.Random(seed), 4 * hosts
    graph, places = model(draw, size + size // 2)
    roomy = simulator_of(graph, mixed_gpus(hosts, 4), 8)
    order = draw.sample(range(size), size)
    firsts = (0, *sorted(draw.sample(range(1, size + size // 2), size - 1)))
    plan = make_plan(roomy, firsts, [((rank,),) for rank in order], ([(1,)] * size, 8, "split"))
    peaks = roomy.peak_memory_bytes(plan, roomy.simulate(plan))
    least = 1.0001 * max(peak / (2 - rank // 4 % 2) for rank, peak in enumerate(peaks.tolist()))
    search = StageSearch(simulator_of(graph, mixed_gpus(hosts, 4, memory_bytes=least), 8), places, runs_only=True)
    best = search.run()[0]
    assert best.value[0] == 0
    assert search.times.simulator.fits(best.plan)


def mixed_gpus(num_hosts, per_host, *, memory_bytes=None):
    """Hosts of A100 and of V100 by turns; an A100 has twice the memory."""
    kinds = [
        Device(name="A100", flops_per_s=4e9, memory_bytes=memory_bytes and 2 * memory_bytes),
        Device(name="V100", flops_per_s=1.5e9, memory_bytes=memory_bytes),
    ]
    fabric = Fabric(device=Link(up_bytes_per_s=4e8, down_bytes_per_s=4e8))
    nic = Link(up_bytes_per_s=2e7, down_bytes_per_s=2e7, latency_s=1e-4)
    hosts = tuple(
        Host(name=f"host{number}", devices=(kinds[number % 2],) * per_host, link=nic, fabric=fabric)
        for number in range(num_hosts)
    )
    return Cluster(name="mixed", hosts=hosts)


PUBLISHED = [
    (hosts, stages, kinds, degrees, micro, batch)
    for hosts, stages, kinds in (
        (4, 1, "both"),
        (4, 2, "kinds"),
        (4, 2, "both"),
        (8, 4, "kinds"),
        (8, 4, "both"),
        (16, 8, "both"),
    )
    for degrees, micro, batch in (
        ((1, 1), 1, 256),
        ((1, 1), 2, 2048),
        ((1, 2), 4, 512),
        ((2, 2), 2, 1024),
        ((4, 4), 8, 2048),
        ((2, 4), 1, 512),
    )
]
"""Numbers of hosts of four GPUs and of stages; whether a stage has one kind of GPU or both; degrees of tensor parallelism on
A100 and V100; samples of a micro-batch on a replica; samples of a step. Published plans for mixed GPUs have these forms."""


def published(case):
    """Each stage on as many GPUs, each replica on GPUs of one host; every replica takes as many micro-batches as any other, or
    one more where they do not divide the batch.
    """
    hosts, stages, kinds, degrees, micro, batch = case
    on = mixed_gpus(hosts, 4)
    graph, places = model(random.Random(0), 24)
    simulator = simulator_of(graph, on, batch)
    islands = [tuple(range(4 * host, 4 * host + 4)) for host in range(hosts)]
    per_kind = [islands[0::2], islands[1::2]]
    groups = []
    for stage in range(stages):
        own = []
        for kind, several in enumerate(per_kind):
            ranks = [rank for island in several for rank in island]
            if kinds == "both":
                size = len(ranks) // stages
                ranks = ranks[stage * size : (stage + 1) * size]
            else:
                half = stages // 2
                size = len(ranks) // half
                ranks = ranks[(stage % half) * size : (stage % half + 1) * size] if stage // half == kind else []
            degree = min(degrees[kind], len(ranks) or 1)
            own += [tuple(ranks[at : at + degree]) for at in range(0, len(ranks), degree)]
        groups.append(tuple(own))
    count = batch // micro
    shares = []
    for own in groups:
        least, more = divmod(count, len(own))
        shares.append(tuple(least + (number < more) for number in range(len(own))))
    firsts = tuple(24 * stage // stages for stage in range(stages))
    return simulator, places, make_plan(simulator, firsts, groups, (shares, count, "round-robin"))


@pytest.mark.parametrize(
    "case",
    [case if case[0] == 4 else pytest.param(case, marks=pytest.mark.slow) for case in PUBLISHED],
    ids=str,
)
def test_plans_of_published_forms_are_in_the_space(case):
    """A plan that validates, is simulated, and has a shape from which moves lead down to one device and, each undone by another, back up."""
    simulator, places, plan = published(case)
    plan.validate(num_ranks=len(simulator.costs.cluster.devices), global_batch=simulator.info.global_batch)
    assert 0 < simulator.step_s(plan) < math.inf
    search = StageSearch(simulator, places, runs_only=False)
    shape = to_shape(plan, places.first_ops)
    assert search.plan(shape).pipeline.groups() == plan.pipeline.groups()
    assert search.plan(shape).batch == plan.batch
    assert shape.micro_batches in search.scene.counts
    assert max(len(group) for stage in shape.stages for group in stage.groups) <= search.scene.most_degree
    assert reaches_one_device(shape, search) <= 3 * len(shape.ranks) + len(shape.stages)


def reaches_one_device(shape, search):
    """Moves from the shape to a single device that holds the whole model."""
    number = 0
    while (len(shape.stages) > 1 or len(shape.ranks) > 1) and number < 1000:
        near = min(moves(shape, search.scene), key=lambda one: (len(one.stages), len(one.ranks), -_num_groups(one)))
        made = search.times.shared_out(near)
        assert made is not None
        shape, number = made, number + 1
    return number


def _num_groups(shape):
    return sum(len(stage.groups) for stage in shape.stages)


def test_published_forms_are_many():
    assert len(PUBLISHED) == 36
    assert {4 * case[0] for case in PUBLISHED} == {16, 32, 64}


def unordered(shape):
    """Which of like devices of a host a stage has does not matter, nor how replicas are numbered, nor shares."""
    return (
        shape.micro_batches,
        shape.sharing,
        shape.schedule,
        tuple(
            (stage.first, tuple(sorted(tuple(rank // 4 for rank in group) for group in stage.groups)))
            for stage in shape.stages
        ),
    )


def test_moves_undo_each_other():
    """From random shapes, every move can be taken back by moves: at once, or past boundaries that it has shifted."""
    draw = random.Random(3)
    graph, places = model(draw, 6)
    search = StageSearch(simulator_of(graph, mixed_gpus(2, 4), 16), places, runs_only=False)
    shape = next(iter(search._seeds()))
    for _ in range(3):
        shape = search.times.shared_out(shape)
        near = [made for one in moves(shape, search.scene) if (made := search.times.shared_out(one)) is not None]
        for one in near:
            if len(one.stages) != len(shape.stages) or abs(len(one.ranks) - len(shape.ranks)) > 1:
                continue  # a stage divided or joined may come back with another boundary
            back = {unordered(other) for other in moves(one, search.scene)}
            twice = {unordered(last) for other in moves(one, search.scene) for last in moves(other, search.scene)}
            assert unordered(shape) in back | twice
        shape = draw.choice(near)


def test_shares_move_one_by_one():
    draw = random.Random(3)
    graph, places = model(draw, 4)
    search = StageSearch(simulator_of(graph, mixed_gpus(1, 2), 8), places, runs_only=True)
    shape = search.times.shared_out(next(iter(search._seeds())))
    stage = replace(shape.stages[0], first=0, groups=((0,), (1,)), shares=(5, 3))
    found = {one.stages[0].shares for one in share_moves(replace(shape, stages=(stage,)))}
    assert found == {(4, 4), (6, 2)}


def test_the_estimate_is_near_the_simulator():
    """It only orders what is tried; on the seeds of these cases its median is within a quarter."""
    errors = []
    for seed in (1, 7, 9):
        simulator, places, runs_only = drawn(seed)
        search = StageSearch(simulator, places, runs_only=runs_only)
        for shape in itertools.islice(search._seeds(), 40):
            made = search.times.shared_out(shape)
            errors.append(abs(math.log(search.times.estimate(made)[1] / simulator.step_s(search.plan(made)))))
    assert sorted(errors)[len(errors) // 2] < math.log(1.25)


def test_short_steps_judge_long_ones():
    """512 micro-batches on 16 devices, judged by steps of few: within 1 % of the whole step."""
    draw = random.Random(1)
    graph, places = model(draw, 24)
    search = StageSearch(simulator_of(graph, mixed_gpus(4, 4), 512), places, runs_only=False)
    for sharing, count in (("split", 256), ("round-robin", 512)):
        seed = next(one for one in search._seeds() if len(one.stages) > 2)
        shape = search.times.shared_out(replace(seed, sharing=sharing, micro_batches=count))
        assert search._short(shape) is not None
        assert search.judge(shape)[1] == pytest.approx(search._simulator.step_s(search.plan(shape)), rel=0.01)


def test_no_lane_is_smaller_than_the_model_takes():
    """BatchNorm takes two samples at least: also those that pass from one replica to one of the next stage."""
    draw = random.Random(2)
    graph, places = model(draw, 4)
    simulator = simulator_of(graph, cluster(draw, 4, None), 12)
    search = StageSearch(simulator, replace(places, min_samples=2), runs_only=True)
    for found in search.run():
        pipeline = found.plan.pipeline
        for size, _ in lanes_of(pipeline, found.plan.batch.samples):
            assert size >= 2


def test_orders_of_devices():
    simulator = simulator_of(model(random.Random(0), 3)[0], mixed_gpus(4, 4), 8)
    _, places = model(random.Random(0), 3)
    times = StageSearch(simulator, places, runs_only=True).times
    for line in lines(times):
        assert sorted(line) == list(range(16))
    assert len(lines(times)) > 2
