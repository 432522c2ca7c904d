"""Names of pipeline passes: the one place that writes and reads them, for schedules, predictions and runs.

    pass    = ("f" | "b") STAGE ["." REPLICA] ["/" SLICE] ["." ("input" | "weight")]
    span    = pass " micro-batch " NUMBER

`f1` is the forward pass of stage 1, `b1` its backward pass, `b1.input` and `b1.weight` the halves of a split one. The passes of
a stage's second replica are `f1.1`, `b1.1` …; replica 0 has no number. Where the replicas of two neighbouring stages take
different shares of a micro-batch, a rank runs its pass in slices, one after another: `f1.1`, `f1.1/1`, `f1.1/2`. A prediction
has one pass for all of them; `PassName.whole_share` is its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, half_name

_LETTERS = {FORWARD: "f", BACKWARD: "b"}
_PATTERN = re.compile(
    rf"(?P<letter>[fb])(?P<stage>\d+)(\.(?P<replica>\d+))?(/(?P<slice>\d+))?(\.(?P<half>{INPUT}|{WEIGHT}))?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassName:
    """One pass of one stage; `str` writes it."""

    kind: str
    """`FORWARD`, `BACKWARD`, or of a split backward `INPUT` or `WEIGHT`."""
    stage: int
    replica: int = 0
    """Index of the rank among the ranks of its stage."""
    slice: int = 0
    """Index of the lane (`autotune.runtime.placed.parts`) among those of the rank."""

    def __str__(self) -> str:
        where = f"{self.stage}{f'.{self.replica}' if self.replica else ''}{f'/{self.slice}' if self.slice else ''}"
        if self.kind in _LETTERS:
            return f"{_LETTERS[self.kind]}{where}"
        return half_name(f"{_LETTERS[BACKWARD]}{where}", self.kind)

    @property
    def whole_share(self) -> PassName:
        """The pass over all slices of the rank's share."""
        return replace(self, slice=0)


def pass_name(kind: str, stage: int, *, replica: int = 0, slice_: int = 0) -> str:
    """The name of a pass as text."""
    return str(PassName(kind=kind, stage=stage, replica=replica, slice=slice_))


def parse_pass(name: str) -> PassName | None:
    """The pass of a name; None for a block that is no pass of a stage."""
    found = _PATTERN.fullmatch(name)
    if found is None or (found["half"] and found["letter"] != _LETTERS[BACKWARD]):
        return None
    kind = found["half"] or (FORWARD if found["letter"] == _LETTERS[FORWARD] else BACKWARD)
    return PassName(
        kind=kind, stage=int(found["stage"]), replica=int(found["replica"] or 0), slice=int(found["slice"] or 0)
    )


def span_name(block: str, microbatch: int) -> str:
    """A block of one micro-batch in a timeline: simulated, scheduled or traced."""
    return f"{block} micro-batch {microbatch}"
