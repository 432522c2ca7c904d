"""A prediction: what a plan is expected to take, hold and cost, and what the expectation rests on."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.profilers.breakdown import Breakdown
from autotune.results.store.record import Limit
from autotune.results.text.cluster_text import Branch
from autotune.workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a number of a prediction comes from."""

    what: str
    source: str
    low: float | None = None
    high: float | None = None
    """Range of samples or bytes in which it was measured; beyond, it is a guess. None: it was not measured."""
    worst_error: float | None = None
    """How far the fitted line is from the worst of its own points, as a share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankForecast:
    """One rank's share of the predicted step."""

    rank: int
    device: str
    samples: int
    compute_s: float
    """Data, forward, backward, codec and update: all that keeps the device busy."""
    peak_memory_bytes: float
    peak_at_s: float
    """Moment of the peak, from the start of the step."""
    memory_bytes: float | None = None
    """What the device has; None: not stated."""
    bubble: float | None = None
    """Of a plan with pipeline stages: the part of the step in which the device does nothing."""

    @property
    def fits(self) -> bool:
        return self.memory_bytes is None or self.peak_memory_bytes <= self.memory_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutRanks:
    """Like ranks that a plan leaves out, and why."""

    ranks: tuple[int, ...]
    device: str
    step_with_s: float | None
    """Predicted seconds of a step with them, samples in balance. None: their memory does not hold their part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """One plan on one cluster."""

    workload: str
    cluster: str
    plan: Plan
    global_batch: int
    step_s: float
    ranks: tuple[RankForecast, ...]
    num_tasks: int
    breakdown: Breakdown | None = None
    limit: Limit | None = None
    origins: tuple[Origin, ...] = ()
    tree: Branch | None = None
    """The links of a cluster that are more than one switch."""
    step_range_s: tuple[float, float] | None = None
    """Of a plan with stages whose sends may or may not overlap with computing: if all do, and if none does. None: known."""
    left_out: tuple[LeftOutRanks, ...] = ()
    """The devices that the plan does not use."""
    doubts: tuple[str, ...] = field(default=())
    """Where the prediction leaves what was measured."""
    price_per_hour: float | None = None
    """Of the devices that the plan uses; None where one of them states no price."""
    joules_per_step: float | None = None
    """None where a device states no power."""

    @property
    def samples_per_s(self) -> float:
        return self.global_batch / self.step_s

    @property
    def fits(self) -> bool:
        return all(rank.fits for rank in self.ranks)

    @property
    def limit_share(self) -> float | None:
        """How close to the step time that no plan of its kind can beat, 0 to 1. None: not known, or a plan with stages."""
        return self.limit.step_s / self.step_s if self.limit is not None and self.plan.pipeline is None else None

    @property
    def price_per_million_samples(self) -> float | None:
        if self.price_per_hour is None:
            return None
        return self.price_per_hour * 1e6 / self.samples_per_s / 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedGroup:
    """A group of ops of a plan, and what placing it so is worth."""

    modules: tuple[str, ...]
    """That contain all of its ops and no others."""
    ranks: tuple[int, ...]
    samples: tuple[int, ...]
    devices: str
    compute_share: float
    """Of the arithmetic of a sample."""
    param_bytes: float
    step_elsewhere_s: float
    """Predicted with this group on all devices instead, the others as they are."""
