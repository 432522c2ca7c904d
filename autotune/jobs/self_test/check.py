"""One check of the self-test: every rank measures in a thread of its own, under a time limit; then all ranks share what they found.

The main thread never takes part in what is checked: it waits for the thread no longer than the limit and speaks to the other
ranks over the control plane. So a check that hangs (a device that never answers, a collective that one rank has left) becomes
a finding that names the rank, and the next check runs. A rank whose measurement fails releases what the others wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from autotune.jobs.self_test.finding import PROBLEM, Finding, named_ranks, ranks_of
from autotune.runtime.control.mpi import Control
from autotune.workloads.serial import from_data, to_data

F = TypeVar("F")
_RELEASE_S = 3.0
_MOST_TEXT = 400
_SEND_US = "send this output with what the job prints when NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL are set"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check(Generic[F]):
    """What is checked, how a rank measures it, and what follows from the measurements of all ranks."""

    what: str
    facts: type[F]
    measure: Callable[[], F | None]
    """In a thread; None: this rank has nothing to measure."""
    judge: Callable[[Sequence[tuple[int, F]]], Sequence[Finding]]
    """From each rank's facts. Ranks without an answer are left out: they have a finding of their own."""
    limit_s: float = 45.0
    fix: str = _SEND_US
    """Of a rank that fails or does not answer."""


class Outcome(Generic[F]):
    """What became of a check, the same on every rank."""

    def __init__(self, findings: list[Finding], facts: list[tuple[int, F]]) -> None:
        self.findings, self.facts = findings, facts


class Runner:
    """Runs checks on one rank. Called by the main thread of each rank, the same checks in the same order."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._late: list[threading.Thread] = []

    @property
    def has_hung(self) -> bool:
        """Whether a thread of this rank has not come back: the process must end without waiting for it."""
        return any(thread.is_alive() for thread in self._late)

    def run(self, check: Check[F]) -> Outcome[F]:
        """The findings of all ranks."""
        self._control.network().begin_scope()
        own, error = self._measured(check)
        answers = self._control.share([error, None if own is None else to_data(own)])
        faults = [(rank, answer[0]) for rank, answer in enumerate(answers) if answer[0]]
        facts = [
            (rank, from_data(check.facts, answer[1], f"rank {rank}"))
            for rank, answer in enumerate(answers)
            if answer[1] is not None
        ]
        findings = [
            Finding(
                what=check.what,
                state=PROBLEM,
                detail=f"{named_ranks(ranks, self._control.size)}: {text}",
                fix=check.fix,
                ranks=tuple(ranks),
            )
            for text, ranks in ranks_of(faults).items()
        ]
        if facts:
            findings += check.judge(facts)
        return Outcome(findings, facts)

    def _measured(self, check: Check[Any]) -> tuple[Any, str]:
        network, found = self._control.network(), list[Any]()

        def run() -> None:
            try:
                found.append((check.measure(), ""))
            except Exception as error:  # noqa: BLE001 - whatever fails is a finding
                found.append((None, _described(error)))
                network.fail_scope(found[0][1])

        thread = threading.Thread(target=run, name="autotune-check", daemon=True)
        thread.start()
        thread.join(check.limit_s)
        if found:
            return cast("tuple[Any, str]", found[0])
        late = f"no answer within {check.limit_s:g} s"
        network.fail_scope(late)
        thread.join(_RELEASE_S)
        if thread.is_alive():
            self._late.append(thread)
        return None, late


def _described(error: Exception) -> str:
    """The first line: torch's errors go on with a stack."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:_MOST_TEXT]
