"""What changes of a cluster, or parts of a pool of devices, are predicted to give."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from autotune.results.store.forecast import Forecast

RATIO_ERROR = 0.098
"""Nine of ten ratios of two published predictions, of one model on unlike clusters, were within this of the measured ratio.

`tests/results/store/test_advice.py` computes it from results/published/prediction/pairs.json.
"""


class Verdict(enum.StrEnum):
    """Of a change: more samples per second, fewer, or neither beyond the known error of predictions."""

    WORTH_IT = "worth it"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"
    DOES_NOT_FIT = "does not fit"
    MAKES_IT_FIT = "makes it fit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """The best plan on a changed cluster."""

    change: str
    """As an edit that `--what-if` takes; empty: the cluster as it is."""
    verdict: Verdict | None
    """None: the cluster as it is."""
    forecast: Forecast | None
    """None: no plan fits."""
    limited_by: str
    """What the step's time is spent on, or why nothing fits."""
    times: float | None = None
    """Samples per second, compared with the cluster as it is."""
    times_low: float | None = None
    times_high: float | None = None
    measured_s: float | None = None
    """The step, as a run of this plan took it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subset:
    """The best plan on some hosts of a pool."""

    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    forecast: Forecast | None
    limited_by: str
    measured_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advised:
    """An answer of `autotune advise`: changes, or subsets."""

    workload: str
    cluster: str
    label: str
    changes: tuple[Advice, ...] = ()
    subsets: tuple[Subset, ...] = ()
    is_complete: bool = True
    """Every subset was predicted; else those on the way from one host to all, each time with the best next host."""
    ratio_error: float = RATIO_ERROR
