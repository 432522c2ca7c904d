"""Where a model can be cut into stages, and what would flow there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.workloads.graph import Edge, OpGraph

FROM_STAGES = "stages"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCuts:
    """The ops at which a stage may begin."""

    first_ops: tuple[int, ...]
    """Rising from 0."""
    stream_bytes: tuple[float, ...]
    """Per sample: what a stage that begins there reads of the one before."""
    min_samples: int
    """Fewest samples that the model takes at once."""


def with_streams(graph: OpGraph, cuts: StageCuts) -> OpGraph:
    """The graph with what flows at its cuts as edges; what flows elsewhere, no stage ever sends."""
    edges = tuple(
        Edge(source=graph.ops[first - 1].name, target=graph.ops[first].name, bytes_per_sample=num_bytes)
        for first, num_bytes in zip(cuts.first_ops[1:], cuts.stream_bytes[1:], strict=True)
    )
    return replace(graph, edges=edges, edges_from=FROM_STAGES)
