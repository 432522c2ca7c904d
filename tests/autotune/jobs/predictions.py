"""What the tests of predictions share: a captured model, commands, profiles, simulators."""

from __future__ import annotations

import json
from functools import cache

from autotune.cli.main import main
from autotune.jobs.context import capture_workload, with_held_bytes
from autotune.results.store.fits import Source, TransferFit, TransferRow, WorkFit
from autotune.results.store.profile import CollectiveProfile, OpProfile, Profile, RankProfile, StepPoint
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.roofline import compute_s, op_s
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, Plan
from autotune.workloads.registry import load_workload

MIXED4 = load_cluster("mixed4")


@cache
def digits_graph():
    workload = load_workload("digits", {})
    return with_held_bytes(capture_workload(workload, 0), workload, 0)


def run(capsys, *arguments):
    code = main(list(arguments))
    done = capsys.readouterr()
    return code, done.out, done.err


def forecast(capsys, tmp_path, *arguments):
    code, out, err = run(capsys, *arguments, "--workload", "digits", "--results", str(tmp_path), "--json")
    assert code == 0, err
    return json.loads(out)


def make_profile(graph, cluster, *, slower=1.0, overhead_s=0.001, label="lab"):
    """What a profile of these devices would say, were they `slower` than they state."""

    def line(seconds_at):
        points = [(b, seconds_at(b)) for b in (4.0, 64.0)]
        slope = (points[1][1] - points[0][1]) / 60.0
        fixed_s = max(points[0][1] - 4 * slope, 0.0)
        return WorkFit(fixed_s=fixed_s, per_sample_s=slope, source=Source.MEASURED, low=4, high=64)

    ranks = []
    for rank, device in enumerate(cluster.devices):
        ops = tuple(
            OpProfile(
                name=op.name,
                kind=op.kind,
                forward=line(lambda b, op=op, d=device: slower * op_s(op, d, int(b))),
                backward=line(lambda b, op=op, d=device: slower * op_s(op, d, int(b), backward=True)),
            )
            for op in graph.ops
        )
        whole = slower * compute_s(graph, device, 16)
        ranks.append(
            RankProfile(
                rank=rank,
                device=device.name,
                host=cluster.hosts[cluster.host_of_rank[rank]].name,
                compute=line(lambda b, d=device: slower * compute_s(graph, d, int(b))),
                ops=ops,
                steps=(
                    StepPoint(
                        num_samples=16,
                        data_s=0,
                        compute_s=whole,
                        optimizer_s=0,
                        ops_s=whole,
                        unattributed_s=0,
                        peak_memory_bytes=0,
                    ),
                ),
            )
        )
    per_byte = 1.5 / 125e6
    rows = tuple(
        TransferRow.measured("all-reduce", 4, size, overhead_s + size * per_byte, 0)
        for size in (1024, 65536, 4 * 2**20)
    )
    collective = CollectiveProfile(
        kind="all-reduce", transport="gloo", num_ranks=4, fit=TransferFit.measured(rows), rows=rows
    )
    return Profile(
        workload="digits",
        cluster=cluster.name,
        cluster_fingerprint=cluster.fingerprint(),
        label=label,
        ranks=tuple(ranks),
        collectives=(collective,),
    )


def simulator_of(graph, cluster, profiles):
    info = WorkloadInfo(
        name="digits", options={}, fingerprint="", global_batch=64, param_bytes=graph.param_bytes, flops_per_sample=0.0
    )
    return Simulator(info, graph, cost_model(graph, cluster, profiles))


PLAN = Plan(batch=BatchPlan(samples=(16, 16, 16, 16)), comm=CommPlan(bucket_bytes=2**30))
