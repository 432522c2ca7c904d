"""The launcher, from environments as each of them sets it, and the message of each wrong situation."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.runtime.launch.launcher import Launcher, LauncherKind, is_launched, launcher_of, reporting_rank
from autotune.runtime.launch.slurm import first_host, tasks_per_host
from autotune.workloads.errors import SpecError

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-host-17@1",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
INTEL = MPICH | {"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_ROOT": "/opt/mpi"}
BATCH = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"}
SRUN = BATCH | {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "5",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_STEP_NODELIST": "node[07-08]",
}
SRUN_PMIX = SRUN | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.812.5"}
SRUN_PMI2 = SRUN | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "12"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SHELL = (
    SRUN_PMI2
    | SRUN_PMIX
    | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMI_RANK": "0", "PMI_SIZE": "1", "PMIX_RANK": "0"}
)
OWN_VARIABLES = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


def place(found: Launcher) -> tuple[Any, ...]:
    return found.kind, found.rank, found.size, found.local_rank, found.local_size, found.speaks_mpi


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (OPEN_MPI, (LauncherKind.OPEN_MPI, 3, 4, 1, 2, True)),
        (MPICH, (LauncherKind.MPICH, 3, 4, 1, 2, True)),
        (INTEL, (LauncherKind.INTEL_MPI, 3, 4, 1, 2, True)),
        (SRUN, (LauncherKind.SRUN, 3, 4, 0, 1, False)),
        (SRUN_PMIX, (LauncherKind.SRUN, 3, 4, 0, 1, True)),
        (SRUN_PMI2, (LauncherKind.SRUN, 3, 4, 0, 1, True)),
        (TORCHRUN, (LauncherKind.TORCHRUN, 3, 4, 1, 2, False)),
        (OWN_VARIABLES, (LauncherKind.TORCHRUN, 3, 4, None, None, False)),
        ({}, (LauncherKind.NONE, 0, 1, None, None, False)),
        (BATCH, (LauncherKind.NONE, 0, 1, None, None, False)),
        # nested launchers: the inner one counts
        (
            OPEN_MPI | SRUN | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
            (LauncherKind.OPEN_MPI, 3, 4, 1, 2, True),
        ),
        (TORCHRUN | SRUN_PMIX | {"SLURM_PROCID": "1", "PMIX_RANK": "1"}, (LauncherKind.TORCHRUN, 3, 4, 1, 2, False)),
        (BATCH | TORCHRUN, (LauncherKind.TORCHRUN, 3, 4, 1, 2, False)),
        # in the shell of `srun --pty`
        (SHELL, (LauncherKind.NONE, 0, 1, None, None, False)),
        (SHELL | MPICH, (LauncherKind.MPICH, 3, 4, 1, 2, True)),
        (SHELL | OPEN_MPI, (LauncherKind.OPEN_MPI, 3, 4, 1, 2, True)),
        (SHELL | TORCHRUN, (LauncherKind.TORCHRUN, 3, 4, 1, 2, False)),
        # scripts that set torch's variables from those of the launcher
        (OPEN_MPI | OWN_VARIABLES, (LauncherKind.OPEN_MPI, 3, 4, 1, 2, True)),
        (SRUN | OWN_VARIABLES, (LauncherKind.SRUN, 3, 4, 0, 1, False)),
        (SRUN | {"SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_PROCID": "0"}, (LauncherKind.NONE, 0, 1, None, None, False)),
    ],
)
def test_six_launchers(environment: dict[str, str], expected: tuple[Any, ...]) -> None:
    assert place(launcher_of(environment)) == expected
    assert reporting_rank(environment) == expected[1]
    assert is_launched(environment) == (expected[0] is not LauncherKind.NONE)


def test_ranks_of_torchrun_meet_at_the_agents_store() -> None:
    where = launcher_of(TORCHRUN).rendezvous
    assert where is not None
    assert (where.address, where.port, where.name, where.is_served) == ("10.0.0.7", 29400, "torchrun.abc.1", True)
    own_variables = launcher_of(OWN_VARIABLES).rendezvous
    assert own_variables is not None
    assert not own_variables.is_served


def test_ranks_of_srun_meet_at_the_first_host_on_a_port_of_the_step() -> None:
    where = launcher_of(SRUN).rendezvous
    assert where is not None
    assert (where.address, where.name, where.is_served) == ("node07", "slurm.812.5.0", False)
    others = [launcher_of(SRUN | {"SLURM_STEP_ID": str(step)}).rendezvous for step in range(4)]
    ports = {other.port for other in others if other is not None}
    assert len(ports) == 4
    assert all(16384 <= port < 32768 for port in ports)
    chosen = launcher_of(SRUN | {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "4000"}).rendezvous
    assert chosen is not None
    assert (chosen.address, chosen.port, chosen.chosen_by) == ("10.1.1.1", 4000, "MASTER_PORT")
    one_host = launcher_of(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0"}).rendezvous
    assert one_host is not None
    assert one_host.address == "127.0.0.1"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (OPEN_MPI | TORCHRUN | {"WORLD_SIZE": "8"}, ("WORLD_SIZE is 8", "OMPI_COMM_WORLD_SIZE is 4", "one launcher")),
        (OPEN_MPI | TORCHRUN | {"RANK": "1"}, ("RANK is 1", "OMPI_COMM_WORLD_RANK is 3", "unset 'RANK'")),
        (MPICH | {"WORLD_SIZE": "8"}, ("WORLD_SIZE is 8", "PMI_SIZE is 4", "mpirun -n N")),
        (SRUN | OWN_VARIABLES | {"WORLD_SIZE": "2", "RANK": "1"}, ("WORLD_SIZE is 2", "SLURM_STEP_NUM_TASKS is 4")),
        (SRUN | {"PMIX_RANK": "0"}, ("PMIX_RANK is 0", "SLURM_PROCID is 3", "srun --mpi=pmix")),
        (SRUN | {"PMI_RANK": "3", "PMI_SIZE": "8"}, ("PMI_SIZE is 8", "SLURM_STEP_NUM_TASKS is 4", "unset 'PMI_SIZE'")),
        ({"WORLD_SIZE": "4"}, ("WORLD_SIZE is 4", "RANK is not set", "torchrun")),
        ({"RANK": "1"}, ("RANK is 1", "WORLD_SIZE is not set")),
        ({"RANK": "1", "WORLD_SIZE": "4"}, ("WORLD_SIZE is 4", "MASTER_ADDR is not set")),
        (OWN_VARIABLES | {"RANK": "4"}, ("RANK is 4", "WORLD_SIZE is 4", "0 to 3")),
        (OWN_VARIABLES | {"RANK": "first"}, ("RANK is 'first'", "whole number")),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ("OMPI_COMM_WORLD_RANK is 1", "OMPI_COMM_WORLD_SIZE is not set")),
        ({"PMI_RANK": "1"}, ("PMI_RANK is 1", "PMI_SIZE is not set")),
        ({"PMIX_RANK": "1"}, ("PMIX_RANK is 1", "srun --mpi=pmix")),
        (
            {name: value for name, value in SRUN.items() if name != "SLURM_STEP_NUM_TASKS"},
            ("SLURM_STEP_NUM_TASKS is not set",),
        ),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, ("SLURM_STEP_NODELIST is ''", "MASTER_ADDR")),
    ],
)
def test_contradictions_are_refused_with_both_names(environment: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        launcher_of(environment)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("node[01-04,07],gpu3", "node01"), ("a,b", "a"), ("gpu3", "gpu3"), ("r[1-2]n[3,5-7]x", "r1n3x"), ("n[12]", "n12")],
)
def test_first_host(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_tasks_per_host() -> None:
    assert tasks_per_host("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_host("4") == [4]
    assert tasks_per_host("") == tasks_per_host("many") == []
