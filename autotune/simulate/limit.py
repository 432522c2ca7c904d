"""A lower bound on the step time of every lossless plan on a cluster.

It is the largest of three bounds. Work over total speed, with the best fractional split. The least time in which every host
can compute its part of the batch and send and receive the bytes that *any* algorithm must move: the gradient of every
parameter once, or for a Linear layer the rows that it is a product of, whichever is less. And the time of one sample
on the fastest device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autotune.results.store.record import Limit
from autotune.simulate.factors import ELEMENT_BYTES, factor_bytes
from autotune.simulate.roofline import compute_s
from autotune.simulate.task_graph import Floats
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph

_MANY = 10**6
_HALVINGS = 60


def stated_sample_s(graph: OpGraph, cluster: Cluster) -> list[float]:
    """Least time per sample of each rank's device as the cluster file states it: fixed costs spread over many samples."""
    return [compute_s(graph, device, _MANY) / _MANY for device in cluster.devices]


def step_limit(sample_s: Sequence[float], cluster: Cluster, graph: OpGraph, *, global_batch: int) -> Limit:
    """The bound for ranks that take `sample_s` per sample, joined by this cluster's links."""
    together_s = global_batch / sum(1 / seconds for seconds in sample_s)
    return Limit(
        compute_s=together_s,
        network_s=_network_s(sample_s, cluster, graph, global_batch, at_least_s=together_s),
        path_s=min(sample_s),
    )


def _network_s(
    sample_s: Sequence[float], cluster: Cluster, graph: OpGraph, global_batch: int, *, at_least_s: float
) -> float:
    """The least time for which a split exists: with more time, the most samples of a host grow and the least shrink."""
    links = [host.link for host in cluster.hosts]
    if len(links) < 2 or all(link is None for link in links):
        return 0.0
    up, down = (
        np.array([np.inf if link is None else getattr(link, side) for link in links])
        for side in ("up_bytes_per_s", "down_bytes_per_s")
    )
    speed = np.bincount(cluster.host_of_rank, weights=[1 / seconds for seconds in sample_s], minlength=len(links))
    samples_in = _samples_in(graph, global_batch)

    def is_enough(seconds: float) -> bool:
        most = np.minimum(seconds * speed, samples_in(seconds * up))
        least = global_batch - samples_in(seconds * down)
        return bool((least <= most).all() and least.sum() <= global_batch <= most.sum() * (1 + 1e-9))

    low = high = at_least_s
    while not is_enough(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS if high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _samples_in(graph: OpGraph, global_batch: int) -> Callable[[Floats], Floats]:
    """The most samples whose gradients fit into so many bytes; for received bytes, those of all other hosts."""
    layers = [op for op in graph.ops if op.factor_shapes]
    whole = np.array([op.factor_shapes[0][0] * op.factor_shapes[0][1] * ELEMENT_BYTES for op in layers], np.float64)
    per_sample = np.array([factor_bytes(op, [1])[0] for op in layers], np.float64)
    plain_bytes = graph.param_bytes - whole.sum()
    bends = np.unique(np.clip(np.append(whole / per_sample, [0.0, global_batch]), 0.0, global_batch))
    told_bytes = plain_bytes + np.minimum(whole, bends[:, None] * per_sample).sum(axis=1)

    def samples_in(num_bytes: Floats) -> Floats:
        return np.where(num_bytes < plain_bytes, 0.0, np.interp(num_bytes, told_bytes, bends))

    return samples_in
