"""Every error a user can cause or meet, with the exit code it ends the program with.

An error says what was given, the rule, and the remedy. Bad input is found at the door, before anything runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AutotuneError(Exception):
    """Base of the errors we raise on purpose; anything else that escapes is a bug or a fault of the machine."""

    exit_code = 1


class SpecError(AutotuneError):
    """The input cannot be used: an unknown name, a wrong value, a plan made for something else."""

    exit_code = 2


class StoreError(SpecError):
    """The results folder cannot be read or written."""


class MissingDependencyError(SpecError):
    """A program or package that the request needs is not installed."""


class InfeasiblePlanError(AutotuneError):
    """The plan is well-formed but the devices cannot hold it, or no plan can."""

    exit_code = 3


class TrialTimeoutError(AutotuneError):
    """A trial ran past its time limit."""


def unknown_name(what: str, given: str, known: Iterable[str], remedy: str = "") -> SpecError:
    """The error for a misspelt name: guesses the one that was meant."""
    names = sorted(known)
    by_lower_case = {name.lower(): name for name in sorted(names, key=str.islower)}
    close = difflib.get_close_matches(given.lower(), by_lower_case, n=1, cutoff=0.5)
    guess = f"did you mean {by_lower_case[close[0]]!r}?" if close else f"known: {', '.join(names)}"
    return SpecError(f"unknown {what} {given!r}: {guess}" + (f" ({remedy})" if remedy else ""))
