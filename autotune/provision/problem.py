"""What `autotune provision` is asked: types of resources with prices, layers with their times, a throughput floor.

The same problem in two forms: with names for users, as arrays for the searches (`Problem.tables`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

MAX_UNITS = 10_000
"""Of one stage, where its type has no limit: with perfect scaling, ever more units could cost ever less."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceType:
    """A kind of machine or device that is rented by the unit."""

    name: str
    price_per_hour: float
    limit: int | None = None
    """Most units in all stages together. None: no limit."""
    alpha: float = 1.0
    """The share of computing that more units divide: k units need 1 − α + α/k of the time."""
    beta: float = 1.0
    """The same of transfers."""
    alpha_error: float | None = None
    """Of a fitted α: the largest relative error of a measured time. None: α was stated."""
    beta_error: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A layer, with its seconds per example on one unit of each type, in the order of the problem's types."""

    name: str
    compute_s: tuple[float, ...]
    """Infinite: the layer cannot run on that type."""
    transfer_s: tuple[float, ...]
    """Of what the layer hands on, if a stage ends with it. Infinite: no stage on that type can end here."""
    kind: str = ""
    weight_bytes: float = 0.0
    input_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """The problem as arrays: rows are layers, columns are types."""

    compute_s: Floats
    transfer_s: Floats
    alpha: Floats
    beta: Floats
    price: Floats
    """Per hour."""
    cap: Floats
    """Most units of one stage."""
    limit: Floats
    """Most units of all stages; infinite: none."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Layers, types, and what is wanted."""

    types: tuple[ResourceType, ...]
    layers: tuple[Layer, ...]
    examples: float
    min_throughput: float = 0.0
    """Examples per second."""
    source: dict[str, str] = field(default_factory=dict)
    """Where times and prices come from, for the report."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.types)

    @property
    def has_limits(self) -> bool:
        return any(one.limit is not None for one in self.types)

    @cached_property
    def tables(self) -> Tables:
        limit = np.array([np.inf if one.limit is None else float(one.limit) for one in self.types])
        return Tables(
            compute_s=np.array([layer.compute_s for layer in self.layers], dtype=np.float64),
            transfer_s=np.array([layer.transfer_s for layer in self.layers], dtype=np.float64),
            alpha=np.array([one.alpha for one in self.types], dtype=np.float64),
            beta=np.array([one.beta for one in self.types], dtype=np.float64),
            price=np.array([one.price_per_hour for one in self.types], dtype=np.float64),
            cap=np.where(np.isinf(limit), float(MAX_UNITS), limit),
            limit=limit,
        )

    @cached_property
    def slowest_s(self) -> float:
        """No stage of any plan takes longer, so that a longer limit on stages allows nothing more."""
        if self.min_throughput > 0:
            return 1 / self.min_throughput
        return self.longest_stage_s

    @cached_property
    def longest_stage_s(self) -> float:
        """An upper bound on the time of any stage, on one unit."""
        tables = self.tables
        compute = np.where(np.isinf(tables.compute_s), 0.0, tables.compute_s).max(axis=1).sum()
        transfer = np.where(np.isinf(tables.transfer_s), 0.0, tables.transfer_s).max()
        return float(max(compute, transfer))

    def cost(self, rate_s: float) -> float:
        """Money for all examples, from price per hour x seconds per example."""
        return self.examples * rate_s / 3600
