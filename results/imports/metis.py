"""Profiles in the form of Metis: one file per device, degree and batch size, named `DeviceType.A100_tp2_bs4.json`.

A file lists per layer the milliseconds of forward and backward together (`execution_time.layer_compute_total_ms`), the bytes of
its parameters (`model.parameters.parameters_per_layer_bytes`) and the megabytes that training it takes
(`execution_memory.layer_memory_total_mb`). `activation_parameters_bytes` is read as the output of each layer where it is not a
copy of the parameters, which it is in the published example.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.results.imports.imported import Asked, Imported
from autotune.results.imports.layer_times import Cell, write_layers
from autotune.results.imports.table import SIZES, Column, Row, read_json
from autotune.workloads.errors import SpecError

_NAME = re.compile(r"(?:DeviceType\.)?(?P<device>.+)_tp(?P<degree>[1-9]\d*)_bs(?P<samples>[1-9]\d*)\.json")
_FORWARD = 1 / 3
_MS = 1e-3


def is_metis(path: Path) -> bool:
    """Whether a file is named like these."""
    return _NAME.fullmatch(path.name) is not None


def read(asked: Asked) -> Imported:
    """The graph and the profile of all files."""
    cells = [cell for path in asked.files for cell in _cells(path, asked)]
    found = write_layers(asked if asked.name else replace(asked, name=_model_name(asked.files[0])), cells)
    split = "forward is a third of each layer's time, backward two thirds: the files have their sum"
    return replace(found, notes=(*found.notes, split))


def _cells(path: Path, asked: Asked) -> Iterator[Cell]:
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise SpecError(f"{path.name!r} must be named like DeviceType.A100_tp2_bs4.json: device, degree, batch size")
    data = read_json(path)
    total_ms = _numbers(path, data, ("execution_time", "layer_compute_total_ms"))
    if total_ms is None:
        raise SpecError(f"{str(path)!r} has no execution_time.layer_compute_total_ms: a list of milliseconds per layer")
    size = len(total_ms)
    params = _numbers(path, data, ("model", "parameters", "parameters_per_layer_bytes"), size) or [0.0] * size
    output = _numbers(path, data, ("model", "parameters", "activation_parameters_bytes"), size)
    memory = _numbers(path, data, ("execution_memory", "layer_memory_total_mb"), size)
    degree = int(named["degree"])
    for layer, seconds in enumerate(value * _MS for value in total_ms):
        yield Cell(
            layer=f"layer{layer}",
            device=asked.device or named["device"],
            degree=degree,
            samples=int(named["samples"]),
            forward_s=seconds * _FORWARD,
            backward_s=seconds * (1 - _FORWARD),
            param_bytes=params[layer] / degree,
            output_bytes=output[layer] if output is not None and output != params else None,
            memory_bytes=memory[layer] * SIZES["mb"] if memory is not None else None,
        )


def _numbers(path: Path, data: Any, keys: Sequence[str], size: int | None = None) -> list[float] | None:
    """The list at these keys; None where there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    if data is None:
        return None
    where = f"{str(path)!r} {'.'.join(keys)}"
    if not isinstance(data, list) or not data or (size is not None and len(data) != size):
        raise SpecError(f"{where} must be a list with one number per layer" + (f", of {size} layers" if size else ""))
    column = Column(names=("value",))
    return [Row(where=f"{where}[{index}]", values={"value": value}).number(column) for index, value in enumerate(data)]


def _model_name(path: Path) -> str:
    data = read_json(path)
    named = data.get("model", {}).get("model_name") if isinstance(data, Mapping) else None
    return str(named).replace("/", "-") if named else path.parent.name or "model"
