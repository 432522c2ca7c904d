"""A sweep's report as plain data: the console and the JSON output show the same values."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.profilers.breakdown import Breakdown
from autotune.results.judge.stats import Ratio
from autotune.results.store.record import Limit, RankResult
from autotune.results.text.cluster_text import Branch
from autotune.workloads.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRow:
    """One trial, beside the default's trial. Trials run one after the other: for fair ratios see the comparison."""

    number: int
    role: str
    plan: Plan
    summary: str
    step_s: float | None
    samples_per_s: float | None
    cpu_s_per_step: float | None
    ratio_to_default: float | None
    state: str
    reason: str
    predicted_step_s: float | None = None
    """The prediction of the simulator, if there is one."""
    peak_memory_bytes: int | None = None
    """Of the rank that holds most, as metered."""
    predicted_peak_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A plan and how it stands: from the final comparison or, where that is missing, from its trial."""

    name: str
    plan: Plan
    summary: str
    is_lossless: bool
    step_s: float
    """Median over the rounds."""
    samples_per_s: float
    cpu_s_per_step: float | None
    """Sum over the ranks."""
    fraction_of_limit: float | None
    """The limit's step over this one: 1 is as fast as these devices can be."""
    ranks: tuple[RankResult, ...] = ()
    vs_first: Ratio | None = None
    """Speed over the comparison's first contender; None for that one itself and outside a comparison."""
    verdict: str = ""
    """What `vs_first` amounts to: "faster", "slower", "no difference" or "too few rounds"."""
    vs_tuned: Ratio | None = None
    """Speed over tuned DDP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnobRow:
    """What one knob is worth: the best plan against itself with that knob reset to its default."""

    knob: str
    reverted_plan: str
    reverted_step_s: float
    worth: Ratio
    """Above 1, the best plan is faster for having this knob turned."""
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """One rank under the default (None where it could not run) and under the best plan."""

    rank: int
    device: str
    default: RankResult | None
    best: RankResult | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command line that works as it stands, and what it is for."""

    purpose: str
    line: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepReport:
    """Everything a sweep ends with."""

    study: str
    workload: str
    cluster: str
    label: str
    """How the figures came about: "emulated" or "measured on this machine"."""
    num_ranks: int
    global_batch: int
    counts: dict[str, int]
    """Trials by state, zeros included."""
    trials: tuple[TrialRow, ...]
    """Fastest first; those without a step time last."""
    default_problem: str
    """What kept the default from being measured ("does not fit the devices: ..."); empty where it was."""
    default: Standing | None
    best: Standing | None
    gain: float | None
    """The best plan's speed over the default's."""
    gain_interval: tuple[float, ...]
    """Its 95 % interval; empty where the two only met as single trials."""
    comparison: tuple[Standing, ...]
    """The interleaved comparison, in its own order; empty where the sweep ended before it."""
    noise: Standing | None
    """The first contender measured once more at the end of each round: what differs here is noise."""
    num_rounds: int
    steps_per_round: int
    knobs: tuple[KnobRow, ...]
    searched: tuple[str, ...]
    """The knobs that the search set."""
    ranks: tuple[RankRow, ...]
    breakdown: Breakdown | None
    """Where the time of one traced step of the best plan went."""
    costs: tuple[str, ...]
    """The largest of its costs, in words."""
    limit: Limit | None
    limit_part: str
    """The part of the limit that binds: "compute", "network" or "path"; empty where the limit is unknown."""
    model_error: float | None
    """Median of |predicted - measured| / measured over trials with a prediction."""
    kept: str
    """The contender kept for reuse; empty where the sweep ended before the comparison."""
    best_file: str | None
    commands: tuple[Command, ...]
    command: str
    """What made the study."""
    environment: dict[str, str]
    tree: Branch | None = None
    """The links of the cluster, where they are more than hosts on one switch."""
    headline: str = ""
    findings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRow:
    """One cluster among several that were tuned for the same workload."""

    place: int
    cluster: str
    label: str
    samples_per_s: float | None
    step_s: float | None
    default_samples_per_s: float | None
    gain: float | None
    gain_interval: tuple[float, ...] = ()
    fraction_of_limit: float | None = None
    plan: str = ""
    note: str = ""
    """Why a figure is missing."""
