"""A tuner proposes plans. Each method of tuning is one small class: ours, and what people do today without us.

A tuner is given the record of every trial that it proposed and is asked again, until it has nothing more to propose or its
budget is used. A sweep runs two of them on one study; a race gives each its own trials and the same number of training steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from autotune.results.judge.selection import fastest
from autotune.results.store.record import TrialRecord
from autotune.space.space import Proposal


class Tuner(Protocol):
    """Proposes plans, one at a time."""

    name: str
    is_lossless: bool
    enough: str
    """Why it had nothing more to propose; empty where there is nothing to say."""

    def propose(self, records: Sequence[TrialRecord]) -> Proposal | None:
        """The next plan to measure, given the trials so far; None: no more."""

    def tell(self, record: TrialRecord) -> None:
        """The record of the last proposal."""

    def choice(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        """A trial of the plan that it stands for in the end."""


class ByTrials:
    """Stands for the plan with the fastest trials."""

    enough = ""

    def choice(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        return fastest(records)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """How to search."""

    sampler: str = "tpe"
    seed: int = 0
    allow_lossy: bool = False
    trials: int | None = None
    """How many there will be, if known beforehand."""
