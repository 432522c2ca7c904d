"""Plans with what was measured of them, as benchmarks keep them."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.results.store.record import TrialRecord, WorkloadInfo
from autotune.workloads.cluster import Cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPlans:
    """One workload on one cluster."""

    workload: WorkloadInfo
    cluster: Cluster
    records: tuple[TrialRecord, ...]
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
