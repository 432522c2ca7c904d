"""Times of layers per micro-batch and degree of tensor parallelism, as planners of pipelines measure them.

One row for each layer, degree and micro-batch: `layer`, `tp`, `mbs`, `forward`, `backward` (or `total` of both), and where
known `params`, `activation` (output of the layer), `memory` (all that training it holds), `device`. Layers are a chain in the
order of their first rows. `write_layers` makes the graph and the profile of such cells; other formats of the same content
are read into cells as well.

Degree 1 becomes the profile of the device, other degrees its `sharded` times. A device measured at larger degrees only has
the times of its smallest degree multiplied by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.profilers.fit import Point, fit_line
from autotune.results.imports.imported import HOST, LABEL, Asked, Imported, imported_fit
from autotune.results.imports.table import SIZES, TIMES, Column, Row, read_rows
from autotune.results.store.fits import MemoryFit, Source, WorkFit
from autotune.results.store.profile import OpProfile, Profile, RankProfile, ShardedProfile
from autotune.workloads.errors import SpecError
from autotune.workloads.graphs.graph_file import STATE_COPIES, GraphFile, GraphOp

LAYER = Column(names=("layer", "layer_name", "layer_id", "op", "name"))
DEGREE = Column(names=("tp", "tensor_parallel", "tp_degree", "tmp"))
SAMPLES = Column(names=("mbs", "micro_batch", "micro_batch_size", "microbatch_size", "batch_size", "bs", "samples"))
DEVICE = Column(names=("device", "gpu", "device_type", "gpu_type"))
_DEFAULT_DEVICE = "gpu"
_BACKWARD = 2.0
"""Backward as a multiple of forward, where only their sum is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One layer at one degree and micro-batch, on one device of those that share it."""

    layer: str
    device: str
    degree: int
    samples: int
    forward_s: float
    backward_s: float
    param_bytes: float | None = None
    """Of one device's part."""
    output_bytes: float | None = None
    """Of the whole micro-batch."""
    memory_bytes: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    forward: Column
    backward: Column
    total: Column
    params: Column
    activation: Column
    memory: Column


def read(asked: Asked) -> Imported:
    """The graph and the profile of the rows of all files."""
    columns = _columns(asked.time_unit)
    rows = [row for path in asked.files for row in read_rows(path, asked.keys)]
    return write_layers(asked, [_cell(row, columns, asked) for row in rows])


def _columns(time_unit: str) -> _Columns:
    times, sizes = tuple(TIMES.items()), tuple(SIZES.items())
    if time_unit and time_unit not in TIMES:
        raise SpecError(f"--time-unit {time_unit!r}: it must be one of {', '.join(TIMES)}")

    def time(*names: str) -> Column:
        return Column(names=names, units=times, default_unit=time_unit)

    def size(*names: str) -> Column:
        return Column(names=names, units=sizes, default_unit="bytes")

    return _Columns(
        forward=time("forward", "fwd", "forward_time", "fwd_time"),
        backward=time("backward", "bwd", "backward_time", "bwd_time"),
        total=time("total", "time", "compute", "forward_backward"),
        params=size("params", "param", "parameters", "parameter", "weights"),
        activation=size("activation", "activations", "output", "act_output"),
        memory=size("memory", "mem", "peak_memory"),
    )


def _cell(row: Row, columns: _Columns, asked: Asked) -> Cell:
    def size(column: Column) -> float | None:
        return row.number(column) if row.has(column) else None

    if row.has(columns.forward) or not row.has(columns.total):
        forward_s, backward_s = row.number(columns.forward), row.number(columns.backward)
    else:
        total_s = row.number(columns.total)
        forward_s, backward_s = total_s / (1 + _BACKWARD), total_s * _BACKWARD / (1 + _BACKWARD)
    return Cell(
        layer=row.text(LAYER),
        device=row.text(DEVICE) if row.has(DEVICE) else asked.device or _DEFAULT_DEVICE,
        degree=row.count(DEGREE, default=1),
        samples=row.count(SAMPLES, default=asked.samples),
        forward_s=forward_s,
        backward_s=backward_s,
        param_bytes=size(columns.params),
        output_bytes=size(columns.activation),
        memory_bytes=size(columns.memory),
    )


Table = dict[str, list[Cell]]
"""Cells of one device and degree, by layer."""


def write_layers(asked: Asked, cells: Sequence[Cell]) -> Imported:
    """The graph of the layers, and a profile with a rank for each device."""
    layers = list(dict.fromkeys(cell.layer for cell in cells))
    tables: dict[str, dict[int, Table]] = {}
    for cell in cells:
        tables.setdefault(cell.device, {}).setdefault(cell.degree, {}).setdefault(cell.layer, []).append(cell)
    for device, degrees in tables.items():
        for degree, table in degrees.items():
            _check(device, degree, table, layers)
    notes: list[str] = []
    ranks = tuple(_rank(rank, device, degrees, layers, notes) for rank, (device, degrees) in enumerate(tables.items()))
    graph = _graph(asked, cells, layers, notes)
    profile = Profile(workload=graph.name, cluster="+".join(tables), label=LABEL, ranks=ranks)
    return Imported(graph=graph, profile=profile, notes=tuple(dict.fromkeys(notes)))


def _check(device: str, degree: int, table: Table, layers: Sequence[str]) -> None:
    where = f"device {device!r} at tensor-parallel degree {degree}"
    for layer in layers:
        if layer not in table:
            raise SpecError(f"{where} has no row of layer {layer!r}: every layer must be measured, or none")
        measured = [cell.samples for cell in table[layer]]
        if len(set(measured)) < len(measured):
            twice = next(count for count in measured if measured.count(count) > 1)
            raise SpecError(f"{where} has layer {layer!r} at micro-batch {twice} twice: give one row of each")


def _rank(rank: int, device: str, degrees: Mapping[int, Table], layers: Sequence[str], notes: list[str]) -> RankProfile:
    smallest = min(degrees)
    if smallest > 1:
        notes.append(f"{device} was not measured alone: its times are those of degree {smallest}, times {smallest}")
    ops = tuple(_ops(degrees[smallest], layers, smallest))
    sharded = tuple(
        ShardedProfile(
            degree=degree,
            compute=_whole(degrees[degree], layers),
            ops=tuple(_ops(degrees[degree], layers)),
            includes_sums=True,
        )
        for degree in sorted(degrees)
        if degree > 1
    )
    if sharded:
        notes.append("times of tensor-parallel layers include the sums over their devices")
    return RankProfile(
        rank=rank,
        device=device,
        host=HOST,
        compute=_whole(degrees[smallest], layers, smallest),
        ops=ops,
        memory=_memory(degrees[smallest], layers),
        sharded=sharded,
    )


def _ops(table: Table, layers: Sequence[str], times: int = 1) -> Iterator[OpProfile]:
    for layer in layers:
        cells = table[layer]
        yield OpProfile(
            name=layer,
            kind="layer",
            forward=imported_fit([(cell.samples, cell.forward_s * times) for cell in cells]),
            backward=imported_fit([(cell.samples, cell.backward_s * times) for cell in cells]),
        )


def _shared_samples(table: Table, layers: Sequence[str]) -> list[int]:
    """Micro-batches at which all layers were measured."""
    found = set.intersection(*({cell.samples for cell in table[layer]} for layer in layers))
    if not found:
        raise SpecError(
            f"no micro-batch was measured for all of the {len(layers)} layers: measure at least one size for every layer"
        )
    return sorted(found)


def _whole(table: Table, layers: Sequence[str], times: int = 1) -> WorkFit:
    def seconds(samples: int) -> float:
        cells = (cell for layer in layers for cell in table[layer] if cell.samples == samples)
        return times * sum(cell.forward_s + cell.backward_s for cell in cells)

    return imported_fit([(samples, seconds(samples)) for samples in _shared_samples(table, layers)])


def _memory(table: Table, layers: Sequence[str]) -> MemoryFit | None:
    """Of the whole model, where every layer states its memory."""
    cells = [cell for layer in layers for cell in table[layer]]
    if any(cell.memory_bytes is None for cell in cells):
        return None
    points: list[Point] = [
        (samples, sum(cell.memory_bytes or 0.0 for cell in cells if cell.samples == samples))
        for samples in _shared_samples(table, layers)
    ]
    line = fit_line(points)
    return MemoryFit(
        source=Source.IMPORTED,
        low=points[0][0],
        high=points[-1][0],
        worst_error=line.worst_error,
        fixed_bytes=line.fixed,
        bytes_per_sample=line.slope,
        points=tuple(points),
    )


def _graph(asked: Asked, cells: Sequence[Cell], layers: Sequence[str], notes: list[str]) -> GraphFile:
    degree = min(cell.degree for cell in cells)
    by_layer = {layer: [cell for cell in cells if cell.layer == layer and cell.degree == degree] for layer in layers}
    ops = tuple(_op(layer, by_layer[layer]) for layer in layers)
    if not any(op.param_bytes for op in ops):
        notes.append("no parameters were stated: gradients take no time to sum, and memory counts activations only")
    if not any(op.output_bytes_per_sample for op in ops):
        notes.append("no activations were stated: messages between stages take no time")
    largest = max(cell.samples for cell in cells)
    return GraphFile(name=asked.model, global_batch=asked.global_batch or largest, ops=ops, source=asked.files[0].name)


def _op(layer: str, cells: Sequence[Cell]) -> GraphOp:
    params = max((cell.param_bytes or 0.0) * cell.degree for cell in cells)
    output = _per_sample((cell.samples, cell.output_bytes) for cell in cells)
    saved = _per_sample((cell.samples, cell.memory_bytes) for cell in cells)
    if saved is None or len({cell.samples for cell in cells}) == 1:
        held = [(cell.samples, cell.memory_bytes - STATE_COPIES * params) for cell in cells if cell.memory_bytes]
        saved = max((left / samples for samples, left in held), default=output or 0.0)
    return GraphOp(
        name=layer,
        kind="layer",
        param_bytes=params,
        saved_bytes_per_sample=max(saved, 0.0),
        output_bytes_per_sample=output or 0.0,
    )


def _per_sample(points: Iterable[tuple[int, float | None]]) -> float | None:
    """What one more sample adds, where two sizes or more are known; of one size, its share."""
    known = [(samples, amount) for samples, amount in points if amount is not None]
    if not known:
        return None
    (low, least), (high, most) = min(known), max(known)
    return least / low if low == high else max(most - least, 0.0) / (high - low)
