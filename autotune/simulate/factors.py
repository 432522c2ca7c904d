"""When sufficient factors are faster than an all-reduce: an all-gather of a Linear layer's rows against a sum of its gradient.

In bytes the break-even is at Σ rows·(M+N) = 2·M·N for equal links and equal ranks. In time it also depends on the rows of
each rank, on the links, and on the product, which every rank computes for all rows. The split determines the rows, so
the factors of a plan depend on its split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from autotune.simulate.collectives import sum_phases
from autotune.simulate.edge_loads import gather_bytes
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import Op, OpGraph
from autotune.workloads.plan import CommPlan

ELEMENT_BYTES = 4
_KEPT_SPLITS = 1024


def rows_per_sample(op: Op) -> float:
    """Rows of a Linear layer's input per sample: 1, or the number of tokens."""
    outputs, inputs = op.factor_shapes[0]
    return op.flops_per_sample / (2 * outputs * inputs)


def factor_bytes(op: Op, samples: Sequence[int], element_bytes: int = ELEMENT_BYTES) -> list[float]:
    """Bytes that each rank sends to every other rank."""
    outputs, inputs = op.factor_shapes[0]
    return [count * rows_per_sample(op) * (outputs + inputs) * element_bytes for count in samples]


def linear_ops(graph: OpGraph) -> list[Op]:
    """The Linear layers that can send sufficient factors: not those with tied weights, such as a tied head."""
    return [op for op in graph.ops if op.factor_shapes and op.param_bytes > 0]


def worthwhile_factors(
    graph: OpGraph, cluster: Cluster, samples: Sequence[int], *, collective: str = "ring"
) -> tuple[str, ...]:
    """The Linear layers whose sufficient factors take less time than an all-reduce, including the product; none where links or
    devices are not stated.
    """
    if 0 in samples:
        used = [rank for rank, count in enumerate(samples) if count]
        cluster, samples = cluster.part(used), [samples[rank] for rank in used]
    if _has_no_links(cluster):
        return ()
    return tuple(op.name for op in linear_ops(graph) if _pays(op, cluster, samples, collective))


def factor_chooser(graph: OpGraph, cluster: Cluster) -> Callable[[tuple[int, ...]], tuple[str, ...]] | None:
    """`worthwhile_factors` of any split; None where the model has no Linear layer or no link is stated.

    A split counts the samples of a step: with gradient accumulation, factors are the rows of all passes.
    """
    if not linear_ops(graph) or _has_no_links(cluster):
        return None
    return lru_cache(maxsize=_KEPT_SPLITS)(lambda samples: worthwhile_factors(graph, cluster, samples))


def _has_no_links(cluster: Cluster) -> bool:
    return len(cluster.hosts) < 2 or any(host.link is None for host in cluster.hosts)


def _pays(op: Op, cluster: Cluster, samples: Sequence[int], collective: str) -> bool:
    outputs, inputs = op.factor_shapes[0]
    topology, comm = cluster.topology, CommPlan(collective=collective)
    summed_s = sum(map(topology.busy_s, sum_phases(comm, cluster, outputs * inputs * ELEMENT_BYTES)))
    gathered_s = topology.busy_s(gather_bytes(topology, range(len(samples)), factor_bytes(op, samples)))
    return gathered_s + _rebuild_s(op, cluster, samples) < summed_s


def _rebuild_s(op: Op, cluster: Cluster, samples: Sequence[int]) -> float:
    """Seconds of the product over the other ranks' rows, on the slowest device; 0 where no speed is stated."""
    total = sum(samples)
    return max(
        op.flops_per_sample * (total - count) / device.flops_per_s if device.flops_per_s else 0.0
        for device, count in zip(cluster.devices, samples, strict=True)
    )
