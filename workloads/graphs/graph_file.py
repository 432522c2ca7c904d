"""Op graphs on disk, read strictly: what `--workload FILE.json` takes instead of a model.

A graph states what a prediction needs of a model: its ops in the order they run forward, with the bytes of their parameters and
activations, and the tensors between them. Times come from a profile, or from `flops_per_sample` and the cluster's speeds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.files import PATH_NAME_RULE, is_path_name, json_of, read_text, shown
from autotune.workloads.graph import Edge, Op, OpGraph, Parameter
from autotune.workloads.graphs.graph_cuts import graph_cuts
from autotune.workloads.model_stages import StageCuts
from autotune.workloads.serial import from_data

GRAPH_KIND = "autotune graph"
GRAPH_SCHEMA = 1
MOST_BYTES = 64 << 20
MOST_OPS = 20_000
STATE_COPIES = 4
"""Parameters, gradients and two optimizer moments: what a device holds per parameter byte, unless the file says `held_bytes`."""
_FORMAT = "see the format in docs/files.md"
_OPTION = "global_batch"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphOp:
    """One op of the file; the meaning of each field is that of `autotune.workloads.graph.Op`."""

    name: str
    kind: str = "op"
    param_bytes: float = 0.0
    saved_bytes_per_sample: float = 0.0
    output_bytes_per_sample: float = 0.0
    flops_per_sample: float = 0.0
    fixed_bytes: float = 0.0
    bytes_per_sample: float = 0.0
    backward_factor: float = 2.0
    num_calls: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFile:
    """The content of a graph file."""

    name: str
    global_batch: int
    ops: tuple[GraphOp, ...]
    kind: str = GRAPH_KIND
    schema: int = GRAPH_SCHEMA
    min_samples: int = 1
    edges: tuple[Edge, ...] = ()
    """Empty: a chain, each op reads the output of the one before it."""
    held_bytes: float | None = None
    """Parameters, gradients, optimizer state of the whole model. None: four times its parameters."""
    source: str = ""
    """Where the graph is from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphWorkload:
    """A model that can be predicted but not run."""

    name: str
    global_batch: int
    min_samples: int
    graph: OpGraph
    cuts: StageCuts | None


def read_graph_workload(path: str, options: Mapping[str, str] | None = None) -> GraphWorkload:
    """The graph in a file. Its one option is the global batch."""
    given = dict(options or {})
    batch = given.pop(_OPTION, None)
    if given:
        raise unknown_name(f"option of graph file {path!r}", next(iter(given)), [_OPTION])
    file = read_graph_file(Path(path))
    if batch is not None:
        if not batch.isdigit() or not int(batch):
            raise SpecError(f"--set {_OPTION}={batch}: it must be a whole number from 1")
        file = replace(file, global_batch=int(batch))
    return graph_workload(file)


def read_graph_file(path: Path) -> GraphFile:
    """A graph that was imported or written manually."""
    where = f"graph {str(path)!r}"
    data = _read(path, where)
    if not isinstance(data, dict) or data.get("kind") != GRAPH_KIND:
        raise SpecError(f'{where} is not one: a graph is a table with "kind": "{GRAPH_KIND}"; {_FORMAT}')
    if data.get("schema", GRAPH_SCHEMA) != GRAPH_SCHEMA:
        raise SpecError(f"{where} has schema {data['schema']!r} but this version reads {GRAPH_SCHEMA}; {_FORMAT}")
    try:
        file = from_data(GraphFile, data, where)
    except OverflowError as error:
        raise SpecError(f"{where}: {error}; {_FORMAT}") from error
    check_graph_file(file, where)
    return file


def check_graph_file(file: GraphFile, where: str) -> None:
    """The rules that types alone do not state."""
    complaint = next(_complaints(file), None)
    if complaint is not None:
        raise SpecError(f"{where}: {complaint}; {_FORMAT}")


def graph_workload(file: GraphFile) -> GraphWorkload:
    """The workload that a file describes, cut wherever its edges allow."""
    graph = op_graph(file)
    return GraphWorkload(
        name=file.name,
        global_batch=file.global_batch,
        min_samples=file.min_samples,
        graph=graph,
        cuts=graph_cuts(graph, file.min_samples),
    )


def op_graph(file: GraphFile) -> OpGraph:
    """The ops and edges. An op's parameters count as one tensor."""
    ops = tuple(_op(op) for op in file.ops)
    param_bytes = sum(op.param_bytes for op in ops)
    return OpGraph(
        ops=ops,
        saved_bytes_per_sample=sum(op.saved_bytes_per_sample for op in ops),
        held_bytes=int(STATE_COPIES * param_bytes if file.held_bytes is None else file.held_bytes),
        parameters=tuple(
            Parameter(name=op.name, op=op.name, num_bytes=op.param_bytes, kind=op.kind) for op in ops if op.param_bytes
        ),
        edges=file.edges or tuple(_chain(ops)),
        edges_from="file" if file.edges else "modules",
    )


def _op(op: GraphOp) -> Op:
    values = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    return Op(**values | {"param_bytes": int(op.param_bytes)})


def _chain(ops: tuple[Op, ...]) -> Iterator[Edge]:
    for source, target in pairwise(ops):
        yield Edge(source=source.name, target=target.name, bytes_per_sample=source.output_bytes_per_sample)


def _read(path: Path, where: str) -> Any:
    try:
        return json_of(read_text(path, most_bytes=MOST_BYTES))
    except OSError as error:
        raise SpecError(
            f"cannot read {where}: {error.strerror}: name a graph file, or make one with `autotune import`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where} is no JSON ({error}); {_FORMAT}") from error


def _complaints(file: GraphFile) -> Iterator[str]:
    if not is_path_name(file.name):
        yield f"name is {shown(file.name)}: it must have {PATH_NAME_RULE}"
    if not 0 < len(file.ops) <= MOST_OPS:
        yield f"it has {len(file.ops)} ops: there must be 1 to {MOST_OPS}; join ops that run together"
    if not 1 <= file.min_samples <= file.global_batch:
        yield f"min_samples is {file.min_samples} and global_batch {file.global_batch}: 1 <= min_samples <= global_batch"
    if file.held_bytes is not None and not _is_amount(file.held_bytes):
        yield f"held_bytes is {file.held_bytes}: it must be finite and not negative"
    yield from _wrong_ops(file)
    yield from _wrong_edges(file)


def _wrong_ops(file: GraphFile) -> Iterator[str]:
    if len({op.name for op in file.ops}) < len(file.ops):
        names = [op.name for op in file.ops]
        yield f"op {next(name for name in names if names.count(name) > 1)!r} is there twice: name each op once"
    for index, op in enumerate(file.ops):
        yield from (f"ops[{index}] ({op.name!r}): {text}" for text in _wrong(op))


def _wrong_edges(file: GraphFile) -> Iterator[str]:
    place = {op.name: index for index, op in enumerate(file.ops)}
    for index, edge in enumerate(file.edges):
        unknown = next((name for name in (edge.source, edge.target) if name not in place), None)
        if unknown is not None:
            yield f"edges[{index}] names op {unknown!r}, which is not among the ops"
        elif place[edge.source] >= place[edge.target]:
            yield (
                f"edges[{index}] goes from {edge.source!r} to {edge.target!r}, which runs before it: list the ops in the order "
                "they run forward"
            )
        elif not _is_amount(edge.bytes_per_sample):
            yield f"edges[{index}].bytes_per_sample is {edge.bytes_per_sample}: it must be finite and not negative"


def _wrong(op: GraphOp) -> Iterator[str]:
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        if isinstance(value, int | float) and not _is_amount(value):
            yield f"{field.name} is {value}: it must be finite and not negative"
    if not op.name:
        yield "it has no name: give it one"


def _is_amount(value: float) -> bool:
    return math.isfinite(value) and value >= 0
