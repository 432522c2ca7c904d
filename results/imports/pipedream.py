"""Op graphs of PipeDream's profiler (`graph.txt`): forward and backward times, activation and parameter bytes of each op.

    node4 -- Conv2d(3, 64) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0
    <tab>node4 -- node5

Times are milliseconds and sizes bytes of one minibatch, whose samples the file does not state (`--samples`). The lines of ops
are in no order; ours is topological, by number where that leaves a choice. An activation counts as output of its op and as
saved for its backward pass. A list of sizes counts as its sum.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.results.imports.imported import HOST, LABEL, Asked, Imported, imported_fit
from autotune.results.imports.table import Column, Row, read_source
from autotune.results.store.profile import OpProfile, Profile, RankProfile
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Edge
from autotune.workloads.graphs.graph_file import GraphFile, GraphOp

_NODE = re.compile(r"(?P<name>\S+) -- (?P<kind>.*?) -- (?P<costs>\w+_time=.*)")
_EDGE = re.compile(r"\s+(?P<source>\S+) -- (?P<target>\S+)\s*")
_COST = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")
_MS = 1e-3
_DEFAULT_DEVICE = "gpu"
_COSTS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    name: str
    kind: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    param_bytes: float


def read(asked: Asked) -> Imported:
    """The graph and the profile of one file."""
    if len(asked.files) != 1:
        raise SpecError(f"{len(asked.files)} files were given: an op graph is one file, import one at a time")
    path, samples = asked.files[0], asked.samples
    if samples is None:
        raise SpecError(
            f"{str(path)!r} does not state the samples of a pass: give --samples N (the batch size it was profiled with)"
        )
    nodes, edges = _parsed(path)
    ordered = _ordered(path, nodes, edges)
    return Imported(
        graph=_graph(asked, ordered, edges, samples),
        profile=_profile(asked, ordered, samples),
        notes=(
            "saved activations: the output of each op",
            f"times at {samples} samples only: other numbers are taken to be proportional",
        ),
    )


def _parsed(path: Path) -> tuple[dict[str, _Node], list[tuple[str, str]]]:
    nodes: dict[str, _Node] = {}
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(read_source(path).splitlines(), start=1):
        where = f"{str(path)!r} row {number}"
        if not line.strip():
            continue
        if (found := _EDGE.fullmatch(line)) is not None:
            edges.append((found["source"], found["target"]))
        elif (found := _NODE.fullmatch(line.strip())) is not None:
            if found["name"] in nodes:
                raise SpecError(f"{where}: op {found['name']!r} is there twice")
            nodes[found["name"]] = _node(where, found)
        else:
            raise SpecError(f"{where} is neither an op (NAME -- KIND -- {_COSTS[0]}=…) nor an edge (tab, NAME -- NAME)")
    if not nodes:
        raise SpecError(
            f"{str(path)!r} has no ops: a line is NAME -- KIND -- {', '.join(f'{cost}=…' for cost in _COSTS)}"
        )
    for source, target in edges:
        for name in (source, target):
            if name not in nodes:
                raise SpecError(
                    f"{str(path)!r}: the edge {source} -- {target} names {name!r}, which has no line of its own"
                )
    return nodes, list(dict.fromkeys(edges))


def _node(where: str, found: re.Match[str]) -> _Node:
    costs = {key: _total(value) for key, value in _COST.findall(found["costs"])}
    row = Row(where=where, values=costs)
    forward, backward, activation, params = (row.number(Column(names=(cost,))) for cost in _COSTS)
    return _Node(
        name=found["name"],
        kind=found["kind"].partition("(")[0].strip() or "op",
        forward_s=forward * _MS,
        backward_s=backward * _MS,
        activation_bytes=activation,
        param_bytes=params,
    )


def _total(value: str) -> str | float:
    """The sum of a list; anything else as it is."""
    if not value.startswith("["):
        return value
    parts = re.split(r"[;,\s]+", value.strip("[] "))
    try:
        return sum(float(part) for part in parts if part)
    except ValueError:
        return value


def _ordered(path: Path, nodes: dict[str, _Node], edges: list[tuple[str, str]]) -> list[_Node]:
    place = {name: _sort_key(name) for name in nodes}
    waiting = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in edges:
        waiting[target] += 1
        after[source].append(target)
    free = [(place[name], name) for name, count in waiting.items() if count == 0]
    heapq.heapify(free)
    ordered = []
    while free:
        _, name = heapq.heappop(free)
        ordered.append(nodes[name])
        for target in after[name]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(free, (place[target], target))
    if len(ordered) < len(nodes):
        stuck = next(name for name, count in waiting.items() if count)
        raise SpecError(f"{str(path)!r}: op {stuck!r} is on a cycle or behind one: edges must go forward")
    return ordered


def _sort_key(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+", name)
    return (int(digits.group()) if digits else 0, name)


def _graph(asked: Asked, nodes: list[_Node], edges: list[tuple[str, str]], samples: int) -> GraphFile:
    return GraphFile(
        name=asked.model,
        global_batch=asked.global_batch or samples,
        ops=tuple(_op(node, samples) for node in nodes),
        edges=tuple(_edges(nodes, edges, samples)),
        source=asked.files[0].name,
    )


def _op(node: _Node, samples: int) -> GraphOp:
    each = node.activation_bytes / samples
    return GraphOp(
        name=node.name,
        kind=node.kind,
        param_bytes=node.param_bytes,
        saved_bytes_per_sample=each,
        output_bytes_per_sample=each,
        backward_factor=node.backward_s / node.forward_s if node.forward_s else 0.0,
    )


def _edges(nodes: list[_Node], edges: list[tuple[str, str]], samples: int) -> Iterator[Edge]:
    """In the order the tensors are read."""
    place = {node.name: index for index, node in enumerate(nodes)}
    for source, target in sorted(edges, key=lambda edge: (place[edge[1]], place[edge[0]])):
        each = nodes[place[source]].activation_bytes / samples
        yield Edge(source=source, target=target, bytes_per_sample=each)


def _profile(asked: Asked, nodes: list[_Node], samples: int) -> Profile:
    device = asked.device or _DEFAULT_DEVICE
    total = sum(node.forward_s + node.backward_s for node in nodes)
    ops = tuple(
        OpProfile(
            name=node.name,
            kind=node.kind,
            forward=imported_fit([(samples, node.forward_s)]),
            backward=imported_fit([(samples, node.backward_s)]),
        )
        for node in nodes
    )
    rank = RankProfile(rank=0, device=device, host=HOST, compute=imported_fit([(samples, total)]), ops=ops)
    return Profile(workload=asked.model, cluster=device, label=LABEL, ranks=(rank,))
