"""Shipped cluster files keep their meaning: predictions that were recorded before clusters could state more than one switch.

`python -m tests.autotune.simulate.test_shipped_clusters` records anew, after a change of what a plan or a file *means*.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from autotune.jobs.context import capture_workload
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, cluster_names, load_cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, PipelinePlan, Plan
from autotune.workloads.registry import load_workload

RECORDED = Path(__file__).with_name("shipped_clusters.json")
WORKLOADS = ("digits", "mlp", "gpt", "resnet")
KIB = 1024
BEFORE_TREES = [name for name in cluster_names() if all(host.fabric is None for host in load_cluster(name).hosts)]


@cache
def graph_of(name: str) -> OpGraph:
    return capture_workload(load_workload(name, {}), 0)


def cluster_of(name: str) -> Cluster:
    """With four devices; those of `this-machine`, whose speed is not known, as fast as the others."""
    cluster = load_cluster(name)
    if not cluster.any_ranks:
        return cluster
    (host,) = cluster.for_ranks(4).hosts
    devices = tuple(replace(device, flops_per_s=2.4e9, memory_bytes_per_s=2.4e9) for device in host.devices)
    return replace(cluster.for_ranks(4), hosts=(replace(host, devices=devices),))


def plans(graph: OpGraph) -> Iterator[tuple[str, Plan]]:
    """Of every reducer and collective, some codecs, and a pipeline whose stages share nothing."""
    even, uneven = BatchPlan(samples=(16, 16, 16, 16)), BatchPlan(samples=(25, 18, 13, 8))
    scheduled = CommPlan(reducer="scheduled", partition_bytes=64 * KIB, credit_bytes=256 * KIB)
    yield "ddp", Plan(batch=even, comm=CommPlan(reducer="ddp"))
    for collective in ("ring", "tree", "shards"):
        yield collective, Plan(batch=uneven, comm=CommPlan(bucket_bytes=256 * KIB, collective=collective))
    yield "server", Plan(batch=even, comm=CommPlan(collective="server", servers=(0, 2)))
    yield "stated shares", Plan(batch=even, comm=CommPlan(collective="shards", shares=(0.5, 0.25, 0.25, 0.0)))
    yield "scheduled", Plan(batch=uneven, comm=scheduled)
    yield "across steps", Plan(batch=uneven, comm=replace(scheduled, crosses_steps=True, transport="mpi"))
    for codec in ("fp16", "int8", "topk", "powersgd"):
        yield codec, Plan(batch=uneven, comm=scheduled, compression=CompressionPlan(codec=codec))
    linear = tuple(op.name for op in graph.ops if op.factor_shapes and op.param_bytes)[:1]
    yield "factors", Plan(batch=uneven, comm=scheduled, compression=CompressionPlan(factors=linear))
    yield "averaged", Plan(batch=even, comm=CommPlan(reducer="averaged"))
    if not any(parameter.also for parameter in graph.parameters):
        cuts = tuple(len(graph.ops) * stage // 4 for stage in range(4))
        stages = PipelinePlan(first_ops=cuts, stage_ranks=((0,), (1,), (2,), (3,)), micro_batches=4)
        yield "stages", Plan(batch=BatchPlan(samples=(64, 64, 64, 64)), pipeline=stages)


def simulator_of(workload: str, cluster: str) -> Simulator:
    graph = graph_of(workload)
    info = WorkloadInfo(
        name=workload,
        options={},
        fingerprint="",
        global_batch=64,
        param_bytes=graph.param_bytes,
        flops_per_sample=graph.flops_per_sample,
    )
    return Simulator(info, graph, cost_model(graph, cluster_of(cluster)))


def figures(simulator: Simulator, plan: Plan) -> list[float]:
    """Seconds of a step, all starts and ends together, memory of all ranks."""
    simulated = simulator.simulate(plan)
    return [
        simulated.step_s,
        float(simulated.run.start_s.sum() + simulated.run.end_s.sum()),
        float(simulator.peak_memory_bytes(plan, simulated).sum()),
    ]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_predictions_are_those_recorded(workload):
    recorded = json.loads(RECORDED.read_text())[workload]
    assert set(BEFORE_TREES) == set(recorded)
    for cluster, expected in recorded.items():
        simulator = simulator_of(workload, cluster)
        found = {name: figures(simulator, plan) for name, plan in plans(simulator.graph)}
        assert found.keys() == expected.keys()
        for name, values in found.items():
            assert values == pytest.approx(expected[name], rel=1e-9), (cluster, name)


def test_fingerprints_are_those_recorded():
    """A fingerprint that changes makes kept profiles and plans of that cluster unusable."""
    recorded = json.loads(RECORDED.read_text())["fingerprints"]
    assert {name: load_cluster(name).fingerprint() for name in BEFORE_TREES} == recorded


def record() -> None:
    found: dict[str, object] = {
        workload: {
            cluster: {name: figures(simulator, plan) for name, plan in plans(simulator.graph)}
            for cluster in BEFORE_TREES
            for simulator in [simulator_of(workload, cluster)]
        }
        for workload in WORKLOADS
    }
    found["fingerprints"] = {name: load_cluster(name).fingerprint() for name in BEFORE_TREES}
    text = json.dumps(found, indent=1)
    rows = re.sub(r"\[[^\[\]]*\]", lambda row: "[" + " ".join(row[0][1:-1].split()) + "]", text)
    RECORDED.write_text(rows + "\n")


if __name__ == "__main__":
    record()
