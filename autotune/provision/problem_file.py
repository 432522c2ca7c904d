"""A problem from JSON, and its validation: every error names the field, the value, the rule and the remedy.

`{"types": [{"name", "price_per_hour", "limit"}], "layers": [{"name", "compute_s": {type: s}, "transfer_s": {type: s}}], "alpha":
{type: a}, "beta": {type: b}, "examples", "min_throughput"}`; seconds are per example on one unit. A time of null: the layer cannot run on
that type. "scaling" has measured times on several units, from which α and β are fitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.provision.problem import Layer, Problem, ResourceType
from autotune.provision.scaling import Scaling, fit_share
from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.serial import from_data

MAX_FILE_BYTES = 16 * 2**20
MAX_LAYERS, MAX_TYPES = 1_000, 64
_LARGEST = 1e12
"""Of any number in a file: products of three stay finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Type:
    name: str
    price_per_hour: float | None = None
    limit: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    name: str
    compute_s: dict[str, float | None]
    transfer_s: dict[str, float | None]
    kind: str = ""
    weight_bytes: float = 0.0
    input_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    types: tuple[_Type, ...]
    layers: tuple[_Layer, ...]
    examples: float
    alpha: dict[str, float] = field(default_factory=dict)
    beta: dict[str, float] = field(default_factory=dict)
    min_throughput: float = 0.0
    scaling: dict[str, Scaling] = field(default_factory=dict)


Prices = Callable[[str], float | None]
"""The price per hour of a type by its name; None: not in the list."""


def read_json(path: Path, page: str = "docs/provision.md") -> Any:
    """The content of a JSON file of bounded size."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SpecError(f"cannot read {str(path)!r}: {error.strerror}: name a file that can be read") from error
    if len(content) > MAX_FILE_BYTES:
        raise SpecError(
            f"{str(path)!r} has more than {MAX_FILE_BYTES // 2**20} MiB: give a problem of that size at most"
        )
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise SpecError(f"{str(path)!r} is nested too deep: see {page} for the format") from error
    except ValueError as error:
        raise SpecError(f"{str(path)!r} is no JSON ({error}): see {page} for the format") from error


def read_problem(path: Path, prices: Prices | None = None) -> Problem:
    """The problem in a file, with prices from a list where one is given."""
    return problem_of(read_json(path), str(path), prices)


def problem_of(data: Any, where: str = "the problem", prices: Prices | None = None) -> Problem:
    """The problem that JSON data describes."""
    try:
        given = from_data(_File, data, where)
    except OverflowError as error:
        raise SpecError(f"{where} has a number beyond {_LARGEST:g}: write it in larger units") from error
    names = [one.name for one in given.types]
    _check_names("type", names, f"{where}.types", MAX_TYPES)
    _check_names("layer", [one.name for one in given.layers], f"{where}.layers", MAX_LAYERS)
    problem = Problem(
        types=_types(given, where, prices),
        layers=tuple(_layer(one, names, f"{where}.layers[{place}]") for place, one in enumerate(given.layers)),
        examples=_number(given.examples, f"{where}.examples", above=True),
        min_throughput=_number(given.min_throughput, f"{where}.min_throughput"),
    )
    check_runnable(problem, where)
    return problem


def check_runnable(problem: Problem, where: str) -> None:
    """Every layer runs somewhere, and no plan takes no time at all."""
    for place, layer in enumerate(problem.layers):
        if not any(map(math.isfinite, layer.compute_s)):
            raise SpecError(
                f"{where}.layers[{place}].compute_s of {layer.name!r} is null on every type: give a time on at least one"
            )
    if not any(min(layer.compute_s) > 0 for layer in problem.layers):
        raise SpecError(
            f"{where}.layers: each has a compute_s of 0 on some type, so that a plan takes no time at all: "
            "give at least one layer a time above 0 on every type"
        )


def _types(given: _File, where: str, prices: Prices | None) -> tuple[ResourceType, ...]:
    names = [one.name for one in given.types]
    for key, table in (("alpha", given.alpha), ("beta", given.beta), ("scaling", given.scaling)):
        _check_known(table, names, f"{where}.{key}")
    return tuple(_type(one, given, f"{where}.types[{place}]", where, prices) for place, one in enumerate(given.types))


def _type(one: _Type, given: _File, here: str, where: str, prices: Prices | None) -> ResourceType:
    if one.limit is not None and not 0 <= one.limit <= _LARGEST:
        raise SpecError(
            f"{here}.limit of {one.name!r} is {one.limit}: it must be a number of units from 0, or be left out"
        )
    scaling = given.scaling.get(one.name, Scaling())
    alpha, alpha_error = _share("alpha", given.alpha.get(one.name), scaling.compute, where, one.name)
    beta, beta_error = _share("beta", given.beta.get(one.name), scaling.transfer, where, one.name)
    return ResourceType(
        name=one.name,
        price_per_hour=_price(one, here, prices),
        limit=one.limit,
        alpha=alpha,
        beta=beta,
        alpha_error=alpha_error,
        beta_error=beta_error,
    )


def _price(one: _Type, here: str, prices: Prices | None) -> float:
    price = prices(one.name) if prices is not None else None
    price = one.price_per_hour if price is None else price
    if price is None:
        raise SpecError(f"{here} of {one.name!r} lacks 'price_per_hour': add it, or name a price list with --prices")
    return _number(price, f"{here}.price_per_hour")


def _share(
    key: str, stated: float | None, rows: tuple[tuple[float, ...], ...], where: str, name: str
) -> tuple[float, float | None]:
    """α or β: as stated, or fitted to measured times."""
    if stated is not None:
        if not 0 <= stated <= 1:
            raise SpecError(
                f"{where}.{key}.{name} is {stated:g}: it must be from 0 (more units do not help) to 1 (they divide the time)"
            )
        return stated, None
    if not rows:
        measured = "compute" if key == "alpha" else "transfer"
        raise SpecError(
            f"{where}.{key} lacks type {name!r}: add a share from 0 to 1, or measured times as scaling.{name}.{measured}"
        )
    measured = "compute" if key == "alpha" else "transfer"
    return fit_share(rows, f"{where}.scaling.{name}.{measured}")


def _layer(one: _Layer, names: list[str], here: str) -> Layer:
    return Layer(
        name=one.name,
        compute_s=_times(one.compute_s, names, f"{here}.compute_s"),
        transfer_s=_times(one.transfer_s, names, f"{here}.transfer_s"),
        kind=one.kind,
        weight_bytes=_number(one.weight_bytes, f"{here}.weight_bytes"),
        input_bytes=_number(one.input_bytes, f"{here}.input_bytes"),
    )


def _times(table: Mapping[str, float | None], names: list[str], here: str) -> tuple[float, ...]:
    _check_known(table, names, here)
    for name in names:
        if name not in table:
            raise SpecError(
                f"{here} lacks type {name!r}: add seconds per example on one unit, or null where it cannot run"
            )
    times = ((name, table[name]) for name in names)
    return tuple(math.inf if value is None else _number(value, f"{here}.{name}") for name, value in times)


def _check_known(table: Iterable[str], names: list[str], here: str) -> None:
    for name in table:
        if name not in names:
            raise unknown_name(f"type in {here}:", name, names)


def _check_names(what: str, names: list[str], here: str, most: int) -> None:
    if not 1 <= len(names) <= most:
        raise SpecError(f"{here} has {len(names)} entries: give 1 to {most:,}")
    for place, name in enumerate(names):
        if not name:
            raise SpecError(f"{here}[{place}].name is '': give every {what} a name")
        if names.index(name) < place:
            raise SpecError(
                f"{here}[{place}].name is {name!r}, as that of {what} {names.index(name)}: names must differ"
            )


def _number(value: float, here: str, *, above: bool = False) -> float:
    if not 0 <= value <= _LARGEST or (above and value == 0):
        raise SpecError(
            f"{here} is {value:g}: it must be {'above' if above else 'a number from'} 0, at most {_LARGEST:g}"
        )
    return value
