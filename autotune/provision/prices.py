"""Price lists: a dated TOML of one's own, or a `vms.csv` of skypilot-catalog (github.com/skypilot-org/skypilot-catalog).

An entry of the CSV is an instance type, or an accelerator with its number ("V100:8"; without a number, 1). Some clouds bill accelerators
apart from the host, in rows without an instance type: "a2-highgpu-1g + A100:1" adds the prices of both in the same region.
"""

from __future__ import annotations

import csv
import datetime as dt
import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.serial import known_keys

MAX_BYTES = 64 * 2**20
_COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Region", "Price", "SpotPrice")


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceList:
    """Prices per hour of entries, by region."""

    name: str
    stated: str
    """When and from where, as far as the list says."""
    prices: Mapping[str, Mapping[str, float]] = field(repr=False)
    """By entry, then by region."""
    hostless: frozenset[str] = field(default=frozenset(), repr=False)
    """Accelerators that are billed without their host."""

    def price(self, entry: str) -> float | None:
        """The least price over regions; of a sum, in one region. None: not in the list."""
        parts = [part.strip() for part in entry.split("+")]
        known = [self._known(part) for part in parts]
        if any(one is None for one in known):
            missing = next(part for part, one in zip(parts, known, strict=True) if one is None)
            if len(parts) == 1:
                return None
            raise self.unknown(missing)
        names = [one for one in known if one is not None]
        if all(name in self.hostless for name in names):
            raise SpecError(
                f"price list {self.name!r} has {entry!r} without the host that it needs: add an instance type, as in 'INSTANCE + {entry}'"
            )
        regions = set.intersection(*(set(self.prices[name]) for name in names))
        if not regions:
            raise SpecError(f"price list {self.name!r} has no region with all of {entry!r}: choose another combination")
        return min(sum(self.prices[name][region] for name in names) for region in regions)

    def _known(self, part: str) -> str | None:
        name, _, count = part.partition(":")
        number = f"{name}:{float(count):g}" if count.replace(".", "", 1).isdigit() else f"{name}:1"
        return next((one for one in (part, number) if one in self.prices), None)

    def unknown(self, entry: str) -> SpecError:
        """The error for an entry that the list does not have."""
        return unknown_name(
            f"entry of price list {self.name!r}:", entry, self.prices, "name it with --price-of TYPE=ENTRY"
        )


def read_prices(path: Path, *, spot: bool = False, region: str | None = None) -> PriceList:
    """A price list by its suffix; only of one region if it is named."""
    try:
        size = path.stat().st_size
        content = path.read_text(encoding="utf-8") if path.is_file() and size <= MAX_BYTES else None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SpecError(f"cannot read price list {str(path)!r}: {reason}: name a file that can be read") from error
    if content is None:
        raise SpecError(
            f"price list {str(path)!r} is no file of at most {MAX_BYTES // 2**20} MiB: name a .toml or .csv file"
        )
    if path.suffix == ".toml":
        return _from_toml(path, content, spot=spot, region=region)
    if path.suffix == ".csv":
        return _from_csv(path, content, spot=spot, region=region)
    raise SpecError(
        f"price list {str(path)!r} ends with {path.suffix!r}: it must be .toml, or .csv of skypilot-catalog"
    )


def _from_toml(path: Path, content: str, *, spot: bool, region: str | None) -> PriceList:
    try:
        data = tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(
            f"price list {str(path)!r} is not valid TOML: {error}: see docs/provision.md for the format"
        ) from error
    where = path.name
    known_keys(data, ("date", "currency", "source", "price"), where)
    date = data.get("date")
    if not isinstance(date, dt.date):
        raise SpecError(f"{where}.date is {date!r}: state the day of the prices, as in date = 2026-01-31")
    if not isinstance(data.get("price"), dict):
        raise SpecError(f"{where}.price is {data.get('price')!r}: it must be tables, as in [price.NAME] with per_hour")
    prices: dict[str, dict[str, float]] = {}
    for name, table in data["price"].items():
        here = f"{where}.price.{name}"
        known_keys(table, ("per_hour", "spot_per_hour", "region"), here)
        place = str(table.get("region", ""))
        key = "spot_per_hour" if spot else "per_hour"
        if (region is None or place in ("", region)) and key in table:
            prices[name] = {place if region is None else region: _price(table[key], f"{here}.{key}")}
    return _checked(
        path,
        prices,
        f"{date}, {data.get('currency', 'currency not stated')}, {data.get('source', 'source not stated')}",
    )


def _from_csv(path: Path, content: str, *, spot: bool, region: str | None) -> PriceList:
    rows = csv.DictReader(content.splitlines())
    try:
        missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise SpecError(f"price list {str(path)!r} lacks column {missing[0]!r}: give a vms.csv of skypilot-catalog")
        prices: dict[str, dict[str, float]] = defaultdict(dict)
        hosted: dict[str, bool] = {}
        for row in rows:
            text, place = row["SpotPrice" if spot else "Price"], row["Region"] or ""
            if not text or (region is not None and place != region):
                continue
            price = _price(text, f"{path.name}, line {rows.line_num}, {'SpotPrice' if spot else 'Price'}")
            for name in _entries(row, path.name, rows.line_num):
                prices[name][place] = min(price, prices[name].get(place, math.inf))
                hosted[name] = hosted.get(name, False) or bool(row["InstanceType"])
    except csv.Error as error:
        raise SpecError(
            f"price list {str(path)!r}, line {rows.line_num}: {error}: give a vms.csv of skypilot-catalog"
        ) from error
    hostless = frozenset(name for name, has in hosted.items() if not has)
    return _checked(path, dict(prices), "skypilot-catalog, spot" if spot else "skypilot-catalog, on demand", hostless)


def _entries(row: Mapping[str, str | None], where: str, line: int) -> Iterable[str]:
    if row["InstanceType"]:
        yield str(row["InstanceType"])
    if row["AcceleratorName"]:
        yield f"{row['AcceleratorName']}:{_price(row['AcceleratorCount'] or 1, f'{where}, line {line}, AcceleratorCount'):g}"


def _price(value: Any, here: str) -> float:
    try:
        price = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        price = math.nan
    if not 0 <= price <= 1e9:
        raise SpecError(f"{here} is {value!r}: it must be a number from 0")
    return price


def _checked(
    path: Path, prices: Mapping[str, Mapping[str, float]], stated: str, hostless: frozenset[str] = frozenset()
) -> PriceList:
    if not prices:
        raise SpecError(f"price list {str(path)!r} has no such price: choose another --region, or leave --spot out")
    return PriceList(name=path.name, stated=stated, prices=prices, hostless=hostless)
