"""Where an op graph can be cut into stages: between any two ops, where tensors cross.

A stage passes on what later stages read, so a cut carries each tensor that an op before it makes and an op behind it reads,
once. Where a graph has more places than a search needs, those with the fewest bytes in each equal share of the ops are kept.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from autotune.workloads.graph import OpGraph
from autotune.workloads.model_stages import StageCuts

MOST_CUTS = 64


def graph_cuts(graph: OpGraph, min_samples: int, *, most: int = MOST_CUTS) -> StageCuts | None:
    """None where the graph has one op, or nothing passes between its ops."""
    passing = passing_bytes(graph)
    places = [index for index in range(1, len(graph.ops)) if passing[index] > 0]
    if len(places) > most:
        places = _fewest(places, passing, most)
    if not places:
        return None
    return StageCuts(
        first_ops=(0, *places),
        stream_bytes=(0.0, *(passing[place] for place in places)),
        min_samples=min_samples,
    )


def passing_bytes(graph: OpGraph) -> list[float]:
    """Per op: bytes per sample that a stage beginning there reads from the stages before it."""
    place = {op.name: index for index, op in enumerate(graph.ops)}
    last: dict[int, int] = {}
    size: dict[int, float] = {}
    for edge in graph.edges:
        source, target = place[edge.source], place[edge.target]
        last[source] = max(last.get(source, 0), target)
        size[source] = max(size.get(source, 0.0), edge.bytes_per_sample)
    change = [0.0] * (len(graph.ops) + 2)
    alive = [0] * (len(graph.ops) + 2)
    for source, target in last.items():
        change[source + 1] += size[source]
        change[target + 1] -= size[source]
        alive[source + 1] += 1
        alive[target + 1] -= 1
    live = accumulate(alive)
    sums = accumulate(change)
    return [total if count else 0.0 for total, count in zip(sums, live, strict=True)][: len(graph.ops)]


def _fewest(places: list[int], passing: list[float], most: int) -> list[int]:
    bounds = [len(places) * part // most for part in range(most + 1)]
    shares = (places[low:high] for low, high in pairwise(bounds))
    return [min(share, key=lambda place: passing[place]) for share in shares]
