"""What is remembered: one record per trial, one comparison per finished sweep, and what the study is about."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from autotune.profilers.breakdown import Breakdown
from autotune.results.store.profile import CollectiveProfile
from autotune.workloads.cluster import Cluster
from autotune.workloads.plan import Plan

SCHEMA = 1

DDP_DEFAULT = "DDP default"
DDP_TUNED = "tuned DDP"
BEST = "best plan"
AGAIN = " (again)"
_OLD_NAMES = {"DDP tuned by hand": DDP_TUNED}
"""As files of version 0.1 have them."""


def current_name(name: str) -> str:
    """A contender's name as this version writes it, from a file of any version."""
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


class TrialState(enum.Enum):
    """How a trial ended. A failed or infeasible one has a reason and no score."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


class Role(enum.Enum):
    """Why a plan was measured."""

    DEFAULT = "default"
    """Torch DDP with its defaults and an even split."""
    PEER = "peer"
    """Tuned DDP: torch DDP with a proportional split, several bucket sizes."""
    SEARCH = "search"
    """Proposed by the search."""
    SERVERS = "servers"
    """The plan of the search with its embedding tables on servers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """One rank's share of a step: medians over the measured steps, of CPU time the mean."""

    rank: int
    device: str
    samples: int
    compute_s: float
    """Forward, backward and optimizer, without waiting."""
    wait_s: float
    """Blocked on gradients after backward had ended."""
    cpu_s: float
    """CPU time of all threads."""
    peak_memory_bytes: int
    late_s: float = 0.0
    """Emulated ranks: how far real work ran behind the emulated device or link. Above a few percent, trust nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a simulator expected, beside what was measured. Empty where nothing predicted."""

    step_s: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One measured plan."""

    number: int
    role: Role
    state: TrialState
    plan: Plan
    params: dict[str, Any] = field(default_factory=dict)
    """The search's own coordinates of the plan."""
    search_number: int | None = None
    """Its number in the search's own storage; None for what was measured without asking the search."""
    reason: str = ""
    steps_s: tuple[float, ...] = ()
    """Every measured step: the slowest rank's time."""
    ranks: tuple[RankResult, ...] = ()
    predicted: Prediction = field(default_factory=Prediction)
    breakdown: Breakdown | None = None
    """Where the time of one more step went, traced and not scored."""
    started_at: str = ""
    duration_s: float = 0.0
    schema: int = SCHEMA

    @property
    def step_s(self) -> float | None:
        """The score: the median step, or None where nothing was measured."""
        if self.state is not TrialState.COMPLETE or not self.steps_s:
            return None
        ordered, half = sorted(self.steps_s), len(self.steps_s) // 2
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

    @property
    def cpu_s_per_step(self) -> float:
        """CPU seconds of all ranks per step."""
        return sum(rank.cpu_s for rank in self.ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A plan whose measurement has begun and has no record yet."""

    plan: str
    """Its fingerprint."""
    times: int
    """How often it was begun, by this job and by those that ended during it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One plan in an interleaved comparison, with its mean step time in each round."""

    name: str
    plan: Plan
    rounds_s: tuple[float, ...]
    ranks: tuple[RankResult, ...]
    reverts: str = ""
    """Of an ablation: the knob of the best plan that is reset to its default. The loss is what the knob was worth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Plans measured interleaved within one job, so that a disturbance of the machine affects all of them."""

    contenders: tuple[Contender, ...]
    """The first is the baseline; it takes part twice, as DDP_DEFAULT + AGAIN too, which shows the noise."""
    steps_per_round: int
    schema: int = SCHEMA

    def find(self, name: str) -> Contender:
        return next(contender for contender in self.contenders if contender.name == name)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadInfo:
    """What the study trains, as far as a report needs it; the fingerprint covers the model's structure and costs."""

    name: str
    options: dict[str, Any]
    fingerprint: str
    global_batch: int
    param_bytes: int
    flops_per_sample: float
    num_local_norms: int = 0
    """BatchNorm layers whose statistics are not synchronised by the workload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """No plan can be faster than the largest of these (lossless, this workload, this cluster)."""

    compute_s: float
    """Work over total speed."""
    network_s: float
    """Devices and links together: the bytes that must leave and enter each host under any algorithm, given its samples."""
    path_s: float
    """One sample through the fastest device."""

    @property
    def step_s(self) -> float:
        return max(self.compute_s, self.network_s, self.path_s)

    def share(self, plan: Plan, step_s: float) -> float | None:
        """How close a plan comes to it, 0 to 1. None where ranks hold parts of the model: such plans are not bound by it."""
        return None if plan.is_placed else self.step_s / step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyInfo:
    """What a study is about. A study whose workload, cluster or space differs is another study."""

    name: str
    workload: WorkloadInfo
    cluster: Cluster
    space: dict[str, Any]
    seed: int
    environment: dict[str, str]
    command: str
    created_at: str
    limit: Limit | None = None
    """None where device speeds are neither stated nor measured."""
    all_reduces: tuple[CollectiveProfile, ...] = ()
    """As they were measured when the study began: a resumed one predicts, and chooses from, the same."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True, slots=True)
class BestPlan:
    """The plan kept for reuse, with what it is for and how it was found."""

    workload: str
    workload_fingerprint: str
    cluster: str
    cluster_fingerprint: str
    plan: Plan
    step_s: float
    speedup_over_default: float | None
    """Median ratio in the interleaved comparison; None where the default did not fit the devices."""
    speedup_interval: tuple[float, ...] = ()
    label: str = "emulated"
    study: str = ""
    saved_at: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    """The shapes of the model's trained tensors by name, such as "64x3x3x3": by them a script's model is recognised."""
    schema: int = SCHEMA
