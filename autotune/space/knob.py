"""A knob, declared once: its name, its values, the field of the plan that it writes, how it is read back, and how it is reset.

The search space, Optuna's coordinates, local search, ablation and the documentation of choices follow from these declarations.
A new knob is one declaration and one `KNOBS.register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.workloads.plan import Plan
from autotune.workloads.plan.choices import Registry
from autotune.workloads.split import Bounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What may be chosen in one job."""

    global_batch: int
    limits: Bounds
    """Fewest and most samples per rank."""
    reference: tuple[float, ...]
    """Relative speed of each rank."""
    transports: tuple[str, ...]
    codecs: tuple[str, ...]
    max_bucket_log2: int
    reducers: tuple[str, ...] = ("bucketed",)
    """Values of the knob "reducer" that the job can run."""
    collectives: tuple[str, ...] = ("ring",)
    factors_for: Callable[[tuple[int, ...]], tuple[str, ...]] | None = field(default=None, compare=False)
    """The layers that may send sufficient factors under a split, if any do."""
    kinds: tuple[str, ...] = ()
    """Kinds of layers that may have a codec of their own."""
    rank_kinds: tuple[int, ...] = ()
    """A number for each rank: ranks of one number share one coordinate of the split. Empty: each rank has its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """What a knob may be set to: named choices, or a range of numbers."""

    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.choices) == 1 if self.choices else self.low == self.high and not self.whole

    @property
    def first(self) -> Any:
        """The plainest value."""
        return self.choices[0] if self.choices else int(self.high) if self.whole else 0.0

    def grid(self) -> tuple[Any, ...]:
        """Every value that an exhaustive search tries."""
        return self.choices or tuple(range(int(self.low), int(self.high) + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reset:
    """One knob of a plan as the default has it: for ablation."""

    title: str
    """What reports call the knob."""
    text: str
    """What the plan then has, such as "even split"."""
    plan: Plan


def _always(_plan: Plan) -> bool:
    return True


def _no_resets(_best: Plan, _default: Plan) -> list[Reset]:
    return []


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """One dimension of the space."""

    name: str
    text: str
    """One line for documentation."""
    values: Callable[[Scope], Values]
    """What it may be set to in a job; a fixed one is not searched."""
    write: Callable[[Plan, Any, Scope], Plan]
    """The plan with the knob set."""
    read: Callable[[Plan], Any]
    """The value that a plan has."""
    applies: Callable[[Plan], bool] = _always
    """Whether the knob means anything for a plan: what it needs and excludes. Elsewhere it is neither written nor read."""
    after: tuple[str, ...] = ()
    """Knobs that are written before this one, which reads what they have set."""
    resets: Callable[[Plan, Plan], list[Reset]] = _no_resets
    """The best plan with this knob as the default plan has it; the same plan where it is so already."""
    in_grid: bool = True
    """Whether an exhaustive search tries all values, or the first only."""
    is_always_searched: bool = False
    """Whether it is a coordinate even where it is fixed."""


KNOBS: Registry[Knob] = Registry("knob")
"""In the order of the coordinates of a search."""


def with_comm(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, comm=replace(plan.comm, **changes))


def with_compression(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, compression=replace(plan.compression, **changes))
