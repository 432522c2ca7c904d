"""Run by mpirun: checks of a traced step on every rank. Rank 0 prints {"case", "ok", "detail"} lines."""

from __future__ import annotations

import json
import sys
import time

import torch

from autotune.jobs.context import capture_workload
from autotune.profilers.activity import Activity
from autotune.profilers.breakdown import Breakdown, break_down
from autotune.profilers.timeline import Timeline
from autotune.runtime.control.start import start_control
from autotune.runtime.train.tracing import ClockOffset, traced_step
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.runtime.transport.groups import Groups
from autotune.workloads.cluster import load_cluster
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan
from autotune.workloads.registry import load_workload
from autotune.workloads.serial import from_data, to_data

torch.set_num_threads(1)
control = start_control()
rank, size = control.rank, control.size
WORKLOADS = ("mlp-tiny", "vgg-tiny", "resnet-tiny", "gpt-tiny", "digits")
CONFIGURATIONS = (("bucketed", "gloo"), ("ddp", "gloo"), ("bucketed", "mpi"))
MOST_UNACCOUNTED = 0.01
SKEW_S = 2.0


def report(case: str, ok: object, detail: object = "") -> None:
    if control.is_leader:
        sys.stdout.write(json.dumps({"case": case, "ok": bool(ok), "detail": detail}) + "\n")
        sys.stdout.flush()


def plan_for(reducer: str, transport: str, total: int) -> Plan:
    samples = (total - total // 4, *[total // 4 // (size - 1)] * (size - 1))
    return Plan(
        batch=BatchPlan(samples=(total - sum(samples[1:]), *samples[1:])),
        comm=CommPlan(reducer=reducer, transport=transport, bucket_bytes=1 << 14),
        compression=CompressionPlan(),
    )


def trace(
    groups: Groups, cluster_name: str, workload_name: str, configuration: tuple[str, str], skew_s: float = 0.0
) -> tuple[Timeline, list[float]]:
    """The timeline of all ranks, and each rank's own wall time of the step; both on rank 0."""
    workload = load_workload(workload_name, {})
    reducer, transport = configuration
    cluster = load_cluster(cluster_name).for_ranks(size)
    graph = capture_workload(workload, 0) if cluster.is_emulated else None
    rank_context = RankContext(
        rank=rank,
        device=cluster.devices[rank],
        torch_device=torch.device("cpu"),
        graph=graph,
        network=control.network(),
    )
    with groups.open(transport, timeout_s=30, traced=True) as group:
        trainer = Trainer(workload, plan_for(reducer, transport, workload.global_batch), group, rank_context, seed=0)
        for _ in range(3):
            trainer.step()
        if rank == size - 1:
            time.sleep(skew_s)
        step, timeline = traced_step(trainer, ClockOffset())
        trainer.close()
        del trainer, group
    parts = control.gather((to_data(timeline), step.total_s)) or []
    return Timeline.merge(from_data(Timeline, part, "timeline") for part, _ in parts), [wall_s for _, wall_s in parts]


def unaccounted(timeline: Timeline, walls_s: list[float]) -> list[float]:
    """Of each rank, the share of a step that no part of it explains."""
    found = break_down(timeline)
    return [abs(r.wall_s - wall_s) / wall_s for r, wall_s in zip(found.ranks, walls_s, strict=True)]


def accounted(
    groups: Groups, cluster_name: str, workload_name: str, configuration: tuple[str, str]
) -> tuple[Timeline, list[float]]:
    """Repeats a step that was interrupted between two readings; a gap in our accounting would appear again."""
    for _ in range(3):
        found, walls_s = trace(groups, cluster_name, workload_name, configuration)
        is_whole = max(unaccounted(found, walls_s)) <= MOST_UNACCOUNTED if control.is_leader else None
        if control.broadcast(is_whole):
            break
    return found, walls_s


def communication_share(found: Breakdown) -> float:
    shares = found.mean_shares()
    return shares[Activity.COMMUNICATION] + shares[Activity.STRAGGLER]


def check(case: str, timeline: Timeline, walls_s: list[float], param_bytes: int) -> None:
    errors = unaccounted(timeline, walls_s)
    names = [{span.op for span in timeline.of_rank(r).spans if span.kind == "comm"} for r in range(size)]
    sent = [sum(s.num_bytes for s in timeline.of_rank(r).spans if s.kind == "comm") for r in range(size)]
    report(f"{case}: parts sum to the wall time", max(errors) <= MOST_UNACCOUNTED, errors)
    report(f"{case}: ranks name the same collectives", len(names[0]) > 0 and all(n == names[0] for n in names))
    report(f"{case}: every gradient byte is seen", all(total == param_bytes for total in sent), [sent, param_bytes])


for cluster_name in ("mixed4", "this-machine"):
    groups = Groups(control, load_cluster(cluster_name).for_ranks(size))
    for workload_name in WORKLOADS:
        for configuration in CONFIGURATIONS if workload_name == "vgg-tiny" else CONFIGURATIONS[:1]:
            found, walls_s = accounted(groups, cluster_name, workload_name, configuration)
            model = load_workload(workload_name, {}).model()
            num_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
            if control.is_leader:
                check(f"{workload_name} on {cluster_name}, {' over '.join(configuration)}", found, walls_s, num_bytes)
    if cluster_name == "mixed4":
        tried = []
        for _ in range(3):  # a busy machine may change the share of one step, a skew that counts changes it every time
            together, late = (
                trace(groups, cluster_name, "vgg-tiny", ("bucketed", "gloo"), skew_s)[0] for skew_s in (0.0, SKEW_S)
            )
            if control.is_leader:
                tried.append([communication_share(break_down(timeline)) for timeline in (together, late)])
            if control.broadcast(abs(tried[-1][0] - tried[-1][1]) <= 0.02 if control.is_leader else None):
                break
        if control.is_leader:
            report("a skewed start moves no share", abs(tried[-1][0] - tried[-1][1]) <= 0.02, tried)
    groups.join()

shift_s = 7.5 * rank
ahead_s, error_s = control.clock_offset(lambda: time.monotonic() + shift_s)
offsets = control.gather((ahead_s, error_s)) or []
report(
    "shifted clocks are found within the stated error",
    all(abs(ahead - 7.5 * r) <= error + 1e-6 and error < 0.05 for r, (ahead, error) in enumerate(offsets)),
    offsets,
)
control.share(None)
