"""What has started this process, from the environment alone: `mpirun` of three MPIs, `srun`, `torchrun`, or nothing.

Launchers nest: `mpirun` inside a Slurm step starts its daemons by `srun`, and `srun` may start one `torchrun` per host. The
variables of the outer launcher are then those of the daemon. The inner one counts: Open MPI's own variables always, a
torchrun agent's where they belong to a Slurm step. Any other disagreement is refused with the names of both variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autotune.runtime.launch import slurm
from autotune.workloads.errors import SpecError


class LauncherKind(StrEnum):
    """What has started the ranks of a job."""

    OPEN_MPI = "Open MPI's mpirun"
    INTEL_MPI = "Intel MPI's mpirun"
    MPICH = "MPICH's mpirun"
    SRUN = "srun"
    TORCHRUN = "torchrun"
    NONE = "no launcher"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """Where ranks without MPI find each other: a torch store."""

    address: str
    port: int
    name: str
    """Of the job: equal on all its ranks, another for every other job and restart."""
    is_served: bool
    """Whether the launcher serves the store already; otherwise rank 0 does."""
    chosen_by: str
    """Where the port comes from, for messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """This process's place in its job."""

    kind: LauncherKind = LauncherKind.NONE
    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    """The rank's place among those of its host; None where the launcher does not state it."""
    local_size: int | None = None
    speaks_mpi: bool = False
    """Whether MPI can be started: the launcher has a process manager for MPI libraries."""
    rendezvous: Rendezvous | None = None
    """For a job of several ranks without MPI."""

    @property
    def is_mpirun(self) -> bool:
        return self.kind in (LauncherKind.OPEN_MPI, LauncherKind.INTEL_MPI, LauncherKind.MPICH)


_OPEN_MPI_RANK, _OPEN_MPI_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
_RANKS = (_OPEN_MPI_RANK, "RANK", "PMI_RANK", "PMIX_RANK", slurm.RANK)
_AGENT = "TORCHELASTIC_RUN_ID"
_NOT_BOTH = "one launcher starts the ranks: use either `mpirun -n N` or `torchrun --nproc-per-node N`, or unset {!r}"


def launcher_of(environment: Mapping[str, str]) -> Launcher:
    """The launcher of the process with this environment. Raises SpecError where variables contradict each other."""
    if _OPEN_MPI_SIZE in environment or _OPEN_MPI_RANK in environment:
        found = _open_mpi(environment)
    elif _is_in_shell(environment):
        return _torchrun(environment)
    elif _has_torch_agent(environment) and slurm.is_step(environment):
        return _torchrun(environment)  # the other variables are those of the agent
    elif slurm.is_step(environment):
        found = _srun(environment)
    elif "PMI_RANK" in environment or "PMI_SIZE" in environment:
        found = _hydra(environment)
    elif "PMIX_RANK" in environment:
        found = _pmix(environment)
    else:
        return _torchrun(environment)
    _check_torch_variables(environment, found)
    return found


def reporting_rank(environment: Mapping[str, str]) -> int:
    """The rank for messages, of an environment that may be contradictory: one of the ranks takes itself for rank 0."""
    for name in _RANKS:
        if environment.get(name, "").isdigit() and (name != slurm.RANK or slurm.is_step(environment)):
            return int(environment[name])
    return 0


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process, contradictions or not."""
    names = [_OPEN_MPI_RANK, _OPEN_MPI_SIZE, "RANK"]
    if not _is_in_shell(environment):
        names += ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_SIZE")
    return slurm.is_step(environment) or any(environment.get(name, "").isdigit() for name in names)


def _open_mpi(environment: Mapping[str, str]) -> Launcher:
    """Its variables win over Slurm's: inside an allocation SLURM_PROCID is the rank of mpirun's daemon."""
    return Launcher(
        kind=LauncherKind.OPEN_MPI,
        rank=_number(environment, _OPEN_MPI_RANK),
        size=_number(environment, _OPEN_MPI_SIZE, of=_OPEN_MPI_RANK),
        local_rank=_maybe(environment, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=_maybe(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        speaks_mpi=True,
    )


def _hydra(environment: Mapping[str, str]) -> Launcher:
    """MPICH's process manager, which Intel MPI has as well."""
    is_intel = any(name.startswith("I_MPI_") for name in environment)
    return Launcher(
        kind=LauncherKind.INTEL_MPI if is_intel else LauncherKind.MPICH,
        rank=_number(environment, "PMI_RANK"),
        size=_number(environment, "PMI_SIZE", of="PMI_RANK"),
        local_rank=_maybe(environment, "MPI_LOCALRANKID"),
        local_size=_maybe(environment, "MPI_LOCALNRANKS"),
        speaks_mpi=True,
    )


def _pmix(environment: Mapping[str, str]) -> Launcher:
    if "PMIX_SIZE" not in environment:
        raise SpecError(
            f"PMIX_RANK is {environment['PMIX_RANK']} but nothing states the number of ranks: start the job by "
            "`mpirun -n N` or `srun --mpi=pmix`"
        )
    return Launcher(
        kind=LauncherKind.OPEN_MPI,
        rank=_number(environment, "PMIX_RANK"),
        size=_number(environment, "PMIX_SIZE", of="PMIX_RANK"),
        speaks_mpi=True,
    )


def _srun(environment: Mapping[str, str]) -> Launcher:
    """With PMIx or PMI-2 (`--mpi=pmix`, `--mpi=pmi2`) MPI can be started; otherwise ranks meet at a store."""
    step = slurm.step_of(environment)
    for name, value in (("PMIX_RANK", step.rank), ("PMI_RANK", step.rank), ("PMI_SIZE", step.size)):
        known = slurm.SIZE if name == "PMI_SIZE" else slurm.RANK
        if (given := _maybe(environment, name)) is not None and given != value:
            raise SpecError(
                f"{name} is {given} but {known} is {value}: one of them is left over from another launcher: unset {name!r}, "
                "or start the job by `srun --mpi=pmix` alone"
            )
    speaks_mpi = "PMIX_RANK" in environment or "PMI_RANK" in environment
    return Launcher(
        kind=LauncherKind.SRUN,
        rank=step.rank,
        size=step.size,
        local_rank=step.local_rank,
        local_size=step.local_size,
        speaks_mpi=speaks_mpi,
        rendezvous=None if speaks_mpi or step.size == 1 else _slurm_rendezvous(environment, step),
    )


def _slurm_rendezvous(environment: Mapping[str, str], step: slurm.Step) -> Rendezvous:
    """The first host of the step, and a port that follows from job and step; MASTER_ADDR and MASTER_PORT change them."""
    port, chosen_by = step.port, f"{slurm.JOB} and {slurm.STEP}"
    if "MASTER_PORT" in environment:
        port, chosen_by = _number(environment, "MASTER_PORT"), "MASTER_PORT"
    if (address := environment.get("MASTER_ADDR")) is None:
        address = "127.0.0.1" if step.num_hosts == 1 else slurm.first_host(step.hosts)
    return Rendezvous(
        address=address,
        port=port,
        name=f"slurm.{step.name}",
        is_served=False,
        chosen_by=chosen_by,
    )


def _torchrun(environment: Mapping[str, str]) -> Launcher:
    """Variables of torchrun, or the same ones set by a script."""
    if "RANK" not in environment and environment.get("WORLD_SIZE", "1") == "1":
        return Launcher()
    rank, size = _number(environment, "RANK", of="WORLD_SIZE"), _number(environment, "WORLD_SIZE", of="RANK")
    _check_rank(rank, size, "RANK", "WORLD_SIZE")
    run = environment.get(_AGENT, "")
    where = Rendezvous(
        address=_text(environment, "MASTER_ADDR", of="WORLD_SIZE"),
        port=_number(environment, "MASTER_PORT", of="WORLD_SIZE"),
        name=f"torchrun.{run}.{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        is_served=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        chosen_by="MASTER_PORT",
    )
    return Launcher(
        kind=LauncherKind.TORCHRUN,
        rank=rank,
        size=size,
        local_rank=_maybe(environment, "LOCAL_RANK"),
        local_size=_maybe(environment, "LOCAL_WORLD_SIZE"),
        rendezvous=where if size > 1 else None,
    )


def _is_in_shell(environment: Mapping[str, str]) -> bool:
    """Whether the variables of PMI are those of a shell that `srun` has started, and no launcher has followed."""
    return slurm.is_alone(environment) and environment.get("PMI_SIZE", "1") == "1"


def _has_torch_agent(environment: Mapping[str, str]) -> bool:
    return _AGENT in environment and "RANK" in environment


def _check_torch_variables(environment: Mapping[str, str], found: Launcher) -> None:
    """Scripts often set RANK and WORLD_SIZE from those of the launcher; they must be equal to them."""
    names = {
        LauncherKind.OPEN_MPI: (_OPEN_MPI_RANK, _OPEN_MPI_SIZE),
        LauncherKind.SRUN: (slurm.RANK, slurm.SIZE),
    }.get(found.kind, ("PMI_RANK", "PMI_SIZE"))
    for torchs, own, value in (("WORLD_SIZE", names[1], found.size), ("RANK", names[0], found.rank)):
        if (given := _maybe(environment, torchs)) is not None and given != value:
            raise SpecError(f"{torchs} is {given} but {own} is {value}: {_NOT_BOTH.format(torchs)}")
    _check_rank(found.rank, found.size, *names)


def _check_rank(rank: int, size: int, rank_name: str, size_name: str) -> None:
    if not 0 <= rank < size:
        raise SpecError(
            f"{rank_name} is {rank} but {size_name} is {size}: ranks are 0 to {size - 1}: one of the two is left over from "
            f"another launcher, unset it"
        )


def _maybe(environment: Mapping[str, str], name: str) -> int | None:
    if name not in environment:
        return None
    if not environment[name].isdigit():
        raise SpecError(
            f"{name} is {environment[name]!r}: it must be a whole number: unset it, or start by mpirun, srun or torchrun"
        )
    return int(environment[name])


def _number(environment: Mapping[str, str], name: str, *, of: str = "") -> int:
    if (found := _maybe(environment, name)) is None:
        raise _missing(environment, name, of)
    return found


def _text(environment: Mapping[str, str], name: str, *, of: str) -> str:
    if name not in environment:
        raise _missing(environment, name, of)
    return environment[name]


def _missing(environment: Mapping[str, str], name: str, of: str) -> SpecError:
    given = f"{of} is {environment[of]} but " if of in environment else ""
    return SpecError(f"{given}{name} is not set: start the job by mpirun, srun or torchrun, which set all of theirs")
