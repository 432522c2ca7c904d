"""What became of a loop: the same numbers as one process, a refusal, or a failure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.loops.compare import NORM_BUFFERS, distance, has_local_norms, is_sensitive, tolerance
from tests.loops.description import Loop
from tests.loops.plans import moved_to
from tests.loops.worker import result_file


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Of one loop."""

    loop: Loop
    kind: str
    """"equal", "refused", "different", "failed", or "broken" where the reference itself fails."""
    distance: float = 0.0
    """The largest of any rank, and of a job of one rank, to the reference."""
    tolerance: float = 0.0
    rounding: float = 0.0
    """The distance of two runs of one process that add up in different orders."""
    text: str = ""

    @property
    def is_failure(self) -> bool:
        return self.kind not in {"equal", "refused"}

    @property
    def is_sensitive(self) -> bool:
        return is_sensitive(self.loop, self.rounding)

    @property
    def reason(self) -> str:
        """The last line of the text, without what differs from loop to loop."""
        last = next((line for line in reversed(self.text.strip().splitlines()) if line.strip()), "")
        return re.sub(r"\d+", "N", last.strip())

    @property
    def way(self) -> tuple[str, str]:
        """Two loops fail in the same way where these are equal."""
        return self.kind, self.reason if self.kind in {"failed", "broken"} else ""


def judge(folder: Path, number: int, loop: Loop, text: str | None) -> Verdict:
    """`text`: the output of the job, if this loop ended it."""
    plain, other = (_load(folder, mode, number) for mode in ("plain", "other"))
    for found in (plain, other):
        if message := found["error"] or found["refused"]:
            return Verdict(loop=loop, kind="broken", text=message)
    ranks = [_load(folder, "ranks", number, rank) for rank in range(loop.ranks)]
    if (to := moved_to(loop)) and not any(found["refused"] or found["error"] for found in ranks):
        ranks = [_load(folder, "moved", number, rank) for rank in range(to)]
    if (refusal := _of_one_rank(ranks)) is not None:
        return Verdict(loop=loop, kind="refused", text=refusal)
    errors = [found["error"] for found in ranks if found["error"]]
    if text is not None or errors:
        refused = [f"rank {rank} refused: {found['refused']}" for rank, found in enumerate(ranks) if found["refused"]]
        return Verdict(loop=loop, kind="failed", text="\n".join([text or "", *refused, *errors[:1]]))
    refusals = {found["refused"] for found in ranks}
    if refusals != {None}:
        kind = "refused" if len(refusals) == 1 else "failed"
        return Verdict(loop=loop, kind=kind, text="\n".join(str(refusal) for refusal in refusals))
    return _compared(loop, plain, other, ranks, _load(folder, "alone", number))


def _of_one_rank(ranks: list[dict[str, Any]]) -> str | None:
    """What one rank refused, where every other ended by it in the middle of a wait: it had not come as far."""
    for rank, found in enumerate(ranks):
        cause = f"PeerLostError: rank {rank}: SpecError: {found['refused']}"
        others = [other for other in ranks if other is not found]
        if found["refused"] and others and all(str(other["error"]).strip().endswith(cause) for other in others):
            return str(found["refused"])
    return None


def _compared(
    loop: Loop, plain: dict[str, Any], other: dict[str, Any], ranks: list[dict[str, Any]], alone: dict[str, Any]
) -> Verdict:
    local = has_local_norms(loop)
    if not local and (message := alone["error"] or alone["refused"]):
        return Verdict(loop=loop, kind="failed", text=f"as a job of one rank:\n{message}")
    own = NORM_BUFFERS if local else ()
    apart = [distance(found, plain, without=own if rank else ()) for rank, found in enumerate(ranks)]
    where = [f"rank {rank}" for rank in range(len(ranks))]
    if not local:
        apart.append(distance(alone, plain))
        where.append("a job of one rank")
    rounding = distance(other, plain)
    allowed = tolerance(loop, rounding)
    far = [f"{name} {far:.1e}" for name, far in zip(where, apart, strict=True) if far > allowed]
    kind = "different" if far else "equal"
    text = f"relative distances above {allowed:.1e}: {', '.join(far)}" if far else ""
    return Verdict(loop=loop, kind=kind, distance=max(apart), tolerance=allowed, rounding=rounding, text=text)


def _load(folder: Path, mode: str, number: int, rank: int = 0) -> dict[str, Any]:
    file = result_file(folder, mode, number, rank)
    if not file.exists():
        return {
            "log": [],
            "state": {},
            "refused": None,
            "error": None if mode == "ranks" else f"{mode}: the job ended early",
        }
    found: dict[str, Any] = torch.load(file, weights_only=False)
    return found
