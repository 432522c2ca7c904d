"""Where a model can be cut into stages, and the bytes at each cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.workloads.graph import Edge, OpGraph

FROM_STAGES = "stages"


@dataclass(frozen=True, kw_only=True, slots=True)
class StageCuts:
    """The ops at which a stage may begin."""

    first_ops: tuple[int, ...]
    """Ascending from 0."""
    stream_bytes: tuple[float, ...]
    """Per sample: bytes that a stage that begins there reads from the previous one."""
    min_samples: int
    """Fewest samples that the model takes at once."""


def with_streams(graph: OpGraph, cuts: StageCuts) -> OpGraph:
    """The graph with the tensors at its cuts as edges; stages send no others."""
    edges = tuple(
        Edge(source=graph.ops[first - 1].name, target=graph.ops[first].name, bytes_per_sample=num_bytes)
        for first, num_bytes in zip(cuts.first_ops[1:], cuts.stream_bytes[1:], strict=True)
    )
    return replace(graph, edges=edges, edges_from=FROM_STAGES)
