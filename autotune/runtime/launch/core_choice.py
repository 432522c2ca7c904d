"""Which cores each rank of a job uses, and how many threads: plain data of all ranks in, plain data out.

`mpirun` binds each rank to one core by default where there are two ranks or fewer; its threads, those of gloo and ours then
share that core while the others are idle. The rule: a binding to one physical core is undone where the launcher is mpirun, the
user has not asked for a binding, and an equal share of the launcher's own cores would be larger. A binding to several
cores (`--bind-to numa`), one that the user asked for, and one that Slurm enforces are kept, and named where they leave cores
idle. Threads: the cores of a rank divided by the ranks that share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCores:
    """One rank of the job: its host and the cores that it may use, as logical CPU numbers."""

    host: str
    own: tuple[int, ...]
    """Of this process."""
    launcher: tuple[int, ...]
    """Of the process that started it, which no launcher binds: what the job may use on this host."""
    is_one_core: bool
    """Whether `own` is one physical core, with all or some of its hardware threads."""
    started_by: str
    is_mpirun: bool
    asked: str = ""
    """The option or variable by which the user asked for a binding, where it can be seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoreChoice:
    """What a rank does."""

    cores: tuple[int, ...]
    rebinds: bool
    num_threads: int


def choose_cores(ranks: Sequence[RankCores]) -> tuple[tuple[CoreChoice, ...], tuple[str, ...]]:
    """The choice of each rank, and what a user should know; the same on every rank that is given the same facts."""
    asked = next((rank.asked for rank in ranks if rank.asked), "")
    rebinds = [_is_cramped(rank, ranks) and rank.is_mpirun and not asked for rank in ranks]
    cores = [rank.launcher if undone else rank.own for rank, undone in zip(ranks, rebinds, strict=True)]
    choices = tuple(
        CoreChoice(cores=cores[number], rebinds=rebinds[number], num_threads=_num_threads(number, ranks, cores))
        for number in range(len(ranks))
    )
    return choices, _notes(ranks, rebinds, asked)


def _is_cramped(rank: RankCores, ranks: Sequence[RankCores]) -> bool:
    """Bound to one core, although an equal share of the host's cores would be more."""
    here = sum(other.host == rank.host for other in ranks)
    return rank.is_one_core and len(rank.launcher) // here > len(rank.own)


def _num_threads(number: int, ranks: Sequence[RankCores], cores: Sequence[tuple[int, ...]]) -> int:
    own, host = set(cores[number]), ranks[number].host
    sharing = sum(rank.host == host and bool(own & set(cores[other])) for other, rank in enumerate(ranks))
    return max(1, len(own) // max(sharing, 1))


def _notes(ranks: Sequence[RankCores], rebinds: Sequence[bool], asked: str) -> tuple[str, ...]:
    cramped = [number for number, rank in enumerate(ranks) if _is_cramped(rank, ranks)]
    if not cramped:
        return ()
    first = ranks[cramped[0]]
    which = f"{len(cramped)} of {len(ranks)} ranks are" if len(cramped) < len(ranks) else "each rank is"
    bound = f"{which} bound to one core of {len(first.launcher)} by {first.started_by}"
    if any(rebinds):
        return (
            f"{bound}: undone, they share all cores of their host (`--bind-to none` says so to mpirun; `--bind-to core` keeps it)",
        )
    if asked:
        return (f"{bound}, as {asked} asks: the others are idle (`--bind-to none` uses them)",)
    return (f"{bound}: the others are idle (`--cpus-per-task N`, or `--cpu-bind=none`, uses them)",)
