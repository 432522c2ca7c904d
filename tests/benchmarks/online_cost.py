"""The cost of retuning in a training run: `python -m tests.benchmarks.online_cost [again]`, paced, about a minute.

The time of a decision, the CPU time of step reports, step directives and decisions, and the bytes on the control channel, of
a real run through the scenario of a rotating busy neighbour. Kept under results/published/online-cost.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from autotune.results.store.store import read_json
from tests.benchmarks.prediction import ROOT, paced
from tests.benchmarks.published_table import put_between

PUBLISHED = ROOT / "results" / "published" / "online-cost"
PAGE = ROOT / "docs" / "online.md"
PROGRAM = "tests.benchmarks.programs.online_cost"
WORKLOAD, CLUSTER, SCENARIO, STEPS = "vgg", "mixed4", "busy-neighbour", 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Bytes and CPU time of one rank in a whole run."""

    num_bytes: int
    """Sent on the control channel."""
    cpu_s: float
    """Of step reports, step directives and decisions."""
    total_cpu_s: float
    """Of the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """The time of one decision; most are to continue."""

    wall_s: float
    cpu_s: float
    interruptions: int
    """Involuntary context switches: four ranks share two cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OnlineCost:
    """One run."""

    command: str
    label: str
    num_steps: int
    steps_s: tuple[float, ...]
    decisions: tuple[Taken, ...]
    """Of rank 0, one per step."""
    accounts: tuple[Account, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def bytes_per_step(self) -> float:
        return sum(account.num_bytes for account in self.accounts) / self.num_steps

    @property
    def cpu_share(self) -> float:
        return sum(account.cpu_s for account in self.accounts) / sum(account.total_cpu_s for account in self.accounts)

    def of_core(self, accounts: Sequence[Account]) -> float:
        """Largest CPU time of one of these ranks, as a share of the duration of training."""
        return max(account.cpu_s for account in accounts) / sum(self.steps_s)


def quantile_s(values_s: Sequence[float], share: float) -> float:
    ordered = sorted(values_s)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def line(found: OnlineCost) -> str:
    cpu_s = [taken.cpu_s for taken in found.decisions]
    alone_s = [taken.wall_s for taken in found.decisions if taken.interruptions == 0]
    shared_s = [taken.wall_s for taken in found.decisions if taken.interruptions] or [0.0]
    late = sum(taken.wall_s > 1e-3 for taken in found.decisions)
    return (
        f"Measured over {found.num_steps} steps ({WORKLOAD} on {CLUSTER} through {SCENARIO}, {found.label}): a decision takes "
        f"{1e3 * median(cpu_s):.2f} ms of CPU time in the median, {1e3 * quantile_s(cpu_s, 0.99):.2f} ms at the 99th percentile, {1e3 * max(cpu_s):.2f} ms "
        f"at most. Its wall time is {1e3 * median(alone_s):.2f}, {1e3 * quantile_s(alone_s, 0.99):.2f} and {1e3 * max(alone_s):.2f} ms in the {len(alone_s)} steps in which rank 0 "
        f"was not preempted; in the others, since {len(found.accounts)} ranks share two cores here, {1e3 * median(shared_s):.2f} ms in the median and {1e3 * max(shared_s):.2f} ms at most; more than a millisecond in {late} of all. Step reports, step directives "
        f"and decisions take {100 * found.of_core(found.accounts[:1]):.2f} % of a core on rank 0 and {100 * found.of_core(found.accounts[1:]):.2f} % on the "
        f"others ({100 * found.cpu_share:.1f} % of what the ranks use at all, whose devices are paced); "
        f"{found.bytes_per_step:.0f} bytes a step on the control channel of {len(found.accounts)} ranks. `nox -s online_cost`."
    )


def main(words: list[str]) -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    kept = PUBLISHED / f"{SCENARIO}.json"
    if words != ["again"]:
        paced([sys.executable, "-m", PROGRAM, WORKLOAD, CLUSTER, str(kept), SCENARIO, str(STEPS)])
    put_between(PAGE, "<!-- online-cost -->", "<!-- /online-cost -->", line(read_json(OnlineCost, kept)))


if __name__ == "__main__":
    main(sys.argv[1:])
