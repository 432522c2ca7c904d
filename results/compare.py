"""What a comparison decides: which contender is kept for reuse."""

from __future__ import annotations

from statistics import median

from results.record import AGAIN, BEST, DDP_DEFAULT, Comparison, Contender
from results.stats import speedup


def winner(comparison: Comparison) -> Contender:
    """The search's best plan, unless another is faster beyond noise, or it is no faster than the default beyond noise.

    Variants with one knob put back are there to explain, not to win.
    """
    main = [c for c in comparison.contenders if not c.reverts and not c.name.endswith(AGAIN)]
    chosen = next((c for c in main if c.name == BEST), main[0])
    for rival in sorted(main, key=lambda c: median(c.rounds_s)):
        if rival is not chosen and speedup(chosen.rounds_s, rival.rounds_s).verdict == "faster":
            chosen = rival
    default = main[0]
    if default.name == DDP_DEFAULT and speedup(default.rounds_s, chosen.rounds_s).verdict != "faster":
        return default
    return chosen
