"""Quantities as people write them ("1 Gbit/s", "8 GiB", "0.1 ms"), as SI numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from autotune.workloads.errors import SpecError

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def _with_prefixes(prefixes: Mapping[str, float], unit: str, scale: float = 1.0) -> dict[str, float]:
    return {prefix + unit: factor * scale for prefix, factor in prefixes.items()}


BYTES = _with_prefixes(_DECIMAL | _BINARY, "B")
BYTES_PER_S = _with_prefixes(_DECIMAL, "bit/s", 1 / 8) | _with_prefixes(_DECIMAL | _BINARY, "B/s")
FLOPS_PER_S = _with_prefixes(_DECIMAL, "FLOP/s")
SECONDS = _TIME
WATTS = {"mW": 1e-3, "kW": 1e3, "W": 1.0}

_NUMBER_AND_UNIT = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(\S+)\s*")


def parse_quantity(value: object, units: Mapping[str, float], where: str) -> float:
    """`"200 Mbit/s"` in units BYTES_PER_S -> 25e6. A number without a unit is refused: it could mean anything."""
    match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        examples = ", ".join(list(units)[-3:])
        raise SpecError(
            f'{where} is {value!r}: write a number and a unit in quotes, such as "1 {list(units)[-1]}" (units: {examples}, …)'
        )
    amount = float(match[1]) * units[match[2]]
    if not 0 < amount < math.inf and not (amount == 0 and units is SECONDS):
        raise SpecError(f"{where} is {value!r}: it must be above zero")
    return amount


def format_bytes(num_bytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"


def format_bandwidth(bytes_per_s: float) -> str:
    """125e6 -> "1 Gbit/s"."""
    bits = bytes_per_s * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if bits < 1000:
            return f"{bits:.4g} {unit}"
        bits /= 1000
    return f"{bits:.4g} Gbit/s"
