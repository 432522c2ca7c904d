"""Every error that a user can cause or encounter, with its exit code.

An error states what was given, the rule, and the remedy. Input is validated before anything runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from autotune.workloads.files import shown

_LONGEST = 100
"""Of what is compared with known names."""
_SLIP = 0.75
"""The least similarity of a key to a known one: 'flop' and 'flops' pass, 'nvlink' and 'downlink' (0.71) do not."""


class AutotuneError(Exception):
    """Base of the errors that are raised on purpose; any other is a bug or a fault of the machine."""

    exit_code = 1


class SpecError(AutotuneError):
    """The input cannot be used: an unknown name, a wrong value, a plan made for something else."""

    exit_code = 2


class StoreError(SpecError):
    """The results folder cannot be read or written."""


class MissingDependencyError(SpecError):
    """A program or package that the request needs is not installed."""


class InfeasiblePlanError(AutotuneError):
    """The plan is well-formed but exceeds the devices' memory, or every plan does."""

    exit_code = 3


class LossNotFiniteError(AutotuneError):
    """The loss became nan or inf: training cannot continue."""

    def __init__(self, loss: float, step: int) -> None:
        super().__init__(f"the loss is {loss} in step {step}: lower the learning rate, or look for {loss} in the data")


class TrialTimeoutError(AutotuneError):
    """A trial ran past its time limit."""


def unknown_key(where: str, given: str, known: Iterable[str]) -> SpecError:
    """The error for a key that a file's table does not have; suggests only close matches."""
    names = list(known)
    close = difflib.get_close_matches(given[:_LONGEST].lower(), names, n=1, cutoff=_SLIP)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return SpecError(f"unknown key {shown(given)} in {where}: {guess}known keys: {', '.join(names)}")


def unknown_name(what: str, given: str, known: Iterable[str], remedy: str = "") -> SpecError:
    """The error for a misspelt name: guesses the one that was meant."""
    names = sorted(known)
    by_lower_case = {name.lower(): name for name in sorted(names, key=str.islower)}
    close = difflib.get_close_matches(given[:_LONGEST].lower(), by_lower_case, n=1, cutoff=0.5)
    guess = f"did you mean {by_lower_case[close[0]]!r}?" if close else f"known: {', '.join(names)}"
    return SpecError(f"unknown {what} {shown(given)}: {guess}" + (f" ({remedy})" if remedy else ""))
