"""Candidate plans with stages: cut between modules, within memory, as good as brute force, never worse when searched."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from autotune.jobs.context import capture_workload, with_held_bytes
from autotune.placement.pipeline_plans import staged_plans
from autotune.results.store.record import WorkloadInfo
from autotune.runtime.placed.find_cuts import stage_cuts
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.space.pipeline_points import CUTS, NO_STAGES, ONE_STAGE
from autotune.workloads.cluster import Cluster, Device, Host, Link
from autotune.workloads.model_stages import with_streams
from autotune.workloads.models import gpt, resnet, vgg
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan

SLOW_LINK = Link(up_bytes_per_s=1e6, down_bytes_per_s=1e6, latency_s=1e-4)


def cluster(speeds, memory_bytes=None, link=SLOW_LINK):
    hosts = tuple(
        Host(
            name=f"host{index}",
            devices=(
                Device(name=f"d{speed}", flops_per_s=speed * 1e9, memory_bytes_per_s=1e9, memory_bytes=memory_bytes),
            ),
            link=link,
        )
        for index, speed in enumerate(speeds)
    )
    return Cluster(name="cluster", hosts=hosts, emulation="paced")


def simulator_of(workload, cluster):
    graph = with_held_bytes(capture_workload(workload, 0), workload, 0)
    cuts = stage_cuts(workload, graph, 0)
    if cuts is not None:
        graph = with_streams(graph, cuts)
    info = WorkloadInfo(
        name=workload.name,
        options={},
        fingerprint="",
        global_batch=workload.global_batch,
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
    )
    return Simulator(info, graph, cost_model(graph, cluster)), cuts


def even(workload, size):
    return Plan(batch=BatchPlan(samples=(workload.global_batch // size,) * size))


def test_cuts_fall_between_modules_and_know_what_flows_there():
    workload = resnet.workload(size="tiny", global_batch=16)
    graph = capture_workload(workload, 0)
    cuts = stage_cuts(workload, graph, 0)
    model = workload.model()
    tops = [graph.ops[first].name.split(".")[0] for first in cuts.first_ops]
    assert tops == sorted(set(tops), key=int)
    stream = torch.zeros(1, 3, 16, 16)
    for module in model[: int(tops[2])]:
        stream = module(stream)
    assert cuts.stream_bytes[2] == stream.numel() * 4
    edges = with_streams(graph, cuts).edges
    assert [edge.bytes_per_sample for edge in edges] == list(cuts.stream_bytes[1:])


def test_models_that_cannot_be_cut_have_no_candidates():
    workload = gpt.workload(size="tiny", global_batch=16)
    whole = replace(workload, build_model=lambda: nn.ModuleDict({"all": workload.build_model()})["all"][0])
    graph = capture_workload(workload, 0)
    assert stage_cuts(whole, graph, 0) is None
    synced = resnet.workload(size="tiny", norm="sync", global_batch=16)
    assert stage_cuts(synced, capture_workload(synced, 0), 0) is None
    simulator, _ = simulator_of(workload, cluster((1, 1)))
    assert staged_plans(simulator, None, even(workload, 2)) == NO_STAGES


@pytest.mark.parametrize("speeds", [(2, 1), (1, 2, 4)])
def test_the_best_cut_is_that_of_brute_force(speeds):
    workload = vgg.workload(size="tiny", global_batch=8)
    simulator, cuts = simulator_of(workload, cluster(speeds))
    candidates = staged_plans(simulator, cuts, even(workload, len(speeds)), search_s=0)
    for plan in candidates.plans:
        plan.validate(num_ranks=len(speeds), global_batch=8)
        plan.check_runnable()
    for size, count in {(len(p.pipeline.first_ops), p.pipeline.micro_batches) for p in candidates.plans}:
        ours = min(
            simulator.step_s(p)
            for p in candidates.plans
            if (len(p.pipeline.first_ops), p.pipeline.micro_batches, p.pipeline.schedule) == (size, count, "1f1b")
        )
        least = min(
            simulator.step_s(staged(first, ranks, count, len(speeds)))
            for first in itertools.combinations(cuts.first_ops[1:], size - 1)
            for ranks in itertools.permutations(range(len(speeds)), size)
        )
        assert ours <= least * 1.02


def staged(first, ranks, count, num_ranks):
    samples = [8 if rank in ranks else 0 for rank in range(num_ranks)]
    pipeline = PipelinePlan(
        first_ops=(0, *first), stage_ranks=tuple((rank,) for rank in ranks), micro_batches=count, schedule="1f1b"
    )
    return Plan(batch=BatchPlan(samples=tuple(samples)), pipeline=pipeline)


def test_the_most_promising_cut_is_also_a_candidate_in_a_searched_order_if_that_is_shorter():
    workload = resnet.workload(size="tiny", global_batch=16)
    simulator, cuts = simulator_of(workload, cluster((1, 2, 2)))
    candidates = staged_plans(simulator, cuts, even(workload, 3), search_s=2.0)
    searched = [plan for plan in candidates.plans if plan.pipeline.schedule == "searched"]
    others = [simulator.step_s(plan) for plan in candidates.plans if plan.pipeline.schedule != "searched"]
    for plan in searched:
        plan.validate(num_ranks=3, global_batch=16)
        assert simulator.step_s(plan) < min(others)
    assert len(searched) <= 1


def test_what_a_device_cannot_hold_is_no_candidate():
    workload = resnet.workload(size="tiny", global_batch=16)
    roomy, cuts = simulator_of(workload, cluster((1, 1)))
    plans = staged_plans(roomy, cuts, even(workload, 2), search_s=0).plans
    peaks = [roomy.peak_memory_bytes(plan, roomy.simulate(plan)).max() for plan in plans]
    limit = (min(peaks) + max(peaks)) / 2
    tight, _ = simulator_of(workload, cluster((1, 1), memory_bytes=limit))
    fitting = staged_plans(tight, cuts, even(workload, 2), search_s=0).plans
    assert 0 < len(fitting) < len(plans)
    assert all(tight.peak_memory_bytes(plan, tight.simulate(plan)).max() <= limit for plan in fitting)


def test_coordinates_lead_to_plans_and_back():
    workload = vgg.workload(size="tiny", global_batch=8)
    simulator, cuts = simulator_of(workload, cluster((2, 1, 1)))
    candidates = staged_plans(simulator, cuts, even(workload, 3), search_s=0)
    assert candidates.choices["stages"] == (ONE_STAGE, "2", "3")
    for plan in candidates.plans:
        assert candidates.plan(candidates.point(plan)) == plan
    assert candidates.plan({"stages": ONE_STAGE, "micro_batches": "8"}) is None
    near = candidates.plan({"stages": "3", "micro_batches": "8", "schedule": "searched", "cut": CUTS[-1]})
    assert (len(near.pipeline.first_ops), near.pipeline.micro_batches) == (3, 8)
    assert candidates.point(even(workload, 3))["stages"] == ONE_STAGE
