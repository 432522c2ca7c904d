"""What a comparison says: how much faster one contender is than another, and which is kept for reuse."""

from __future__ import annotations

from statistics import median

from results.record import AGAIN, BEST, DDP_DEFAULT, Comparison, Contender
from results.stats import Ratio, speedup


def ratio(baseline: Contender, contender: Contender) -> Ratio:
    """Speed over the baseline's in the rounds that both finished."""
    shared = min(len(baseline.rounds_s), len(contender.rounds_s))
    return speedup(baseline.rounds_s[:shared], contender.rounds_s[:shared])


def winner(comparison: Comparison) -> Contender:
    """The search's best plan, unless another is faster beyond noise, or it is no faster than the default beyond noise.

    Variants with one knob put back are there to explain, not to win.
    """
    main = [c for c in comparison.contenders if c.rounds_s and not c.reverts and not c.name.endswith(AGAIN)]
    chosen = next((c for c in main if c.name == BEST), main[0])
    for rival in sorted(main, key=lambda c: median(c.rounds_s)):
        if rival is not chosen and ratio(chosen, rival).verdict == "faster":
            chosen = rival
    default = main[0]
    if default.name == DDP_DEFAULT and ratio(default, chosen).verdict != "faster":
        return default
    return chosen
