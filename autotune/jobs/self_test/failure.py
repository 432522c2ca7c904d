"""A deliberate failure: each rank starts one rank of a second job, which loses a rank; how long until the others have ended?

The second job has the devices, the transport and the modules of this one, but processes of its own, which meet at a torch store:
it works under every launcher, over several hosts, and what happens to it cannot harm this job.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.jobs.self_test.failing_job import PAUSE_S, TOGETHER
from autotune.jobs.self_test.finding import PROBLEM, Finding
from autotune.jobs.self_test.judge import Verdict, findings_of
from autotune.runtime.control.address import LOOPBACK, own_address, own_networks
from autotune.runtime.control.mpi import Control

MOST_S = 5.0
"""By when all other ranks must have ended."""
LIMIT_S = 60.0
_LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "MPI_LOCAL", "HYDRA_", "I_MPI_", "TORCHELASTIC_", "MPIR_")
_TORCHS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE")
_ERROR = "autotune: error: "
_MOST_TEXT = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureFacts:
    """What became of one rank of the second job."""

    is_ready: bool
    """Whether it got as far as the failure."""
    released_s: float | None
    """From the failure to the end of this rank; None: it had to be killed, or is the one that failed."""
    exit_code: int | None
    """None: it had to be killed."""
    messages: tuple[str, ...]
    """What it printed: our error messages, or its last line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailingJob:
    """What the ranks of the second job need to know; the same on every rank but for `rank` and `device`."""

    how: str
    rank: int
    size: int
    device: str
    transport: str
    modules: tuple[str, ...]
    address: str
    port: int

    @property
    def failing(self) -> int:
        """The last rank: rank 0 serves the store."""
        return self.size - 1

    @property
    def command(self) -> list[str]:
        program = [sys.executable, "-m", "autotune.jobs.self_test.failing_job"]
        return [*program, self.how, str(self.failing), self.device, self.transport, *self.modules]

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Without the variables of the launcher, which are those of this job."""
        kept = {name: value for name, value in own.items() if not name.startswith(_LAUNCHERS) and name not in _TORCHS}
        place = {"RANK": str(self.rank), "WORLD_SIZE": str(self.size)}
        return kept | place | {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}


def meeting_point(control: Control) -> tuple[str, int]:
    """An address of rank 0's host and a free port there; called by all ranks together."""
    hosts = control.share([socket.gethostname(), own_networks()])
    one_machine = len({name for name, _ in hosts}) == 1
    networks = [found for _, found in hosts]
    address = LOOPBACK if one_machine else own_address(networks, rank=0, one_machine=False)
    return str(control.broadcast(address if control.is_leader else None)), int(
        control.broadcast(_free_port() if control.is_leader else None)
    )


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def fail_on_purpose(job: FailingJob) -> FailureFacts:
    """Start this rank of the second job and wait for its end; in the thread of a check."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        job.command,
        env=job.environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
        ended_s, code = time.monotonic(), process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        ended_s, code = 0.0, None
    return facts_of(job, out, err, ended_s=ended_s, exit_code=code)


def facts_of(job: FailingJob, out: str, err: str, *, ended_s: float, exit_code: int | None) -> FailureFacts:
    """From what a rank of the second job has printed, and when it ended."""
    together = next(
        (float(line.removeprefix(TOGETHER)) for line in out.splitlines() if line.startswith(TOGETHER)), None
    )
    is_measured = together is not None and exit_code is not None and job.rank != job.failing
    lines = [line for line in err.splitlines() if line.strip()]
    ours = [line.partition(_ERROR)[2] for line in lines if _ERROR in line]
    says_why = together is None or job.rank == job.failing
    messages = ours or (lines[-1:] if says_why else [])
    return FailureFacts(
        is_ready=together is not None,
        released_s=max(ended_s - together - PAUSE_S, 0.0) if is_measured and together is not None else None,
        exit_code=exit_code,
        messages=tuple(text[:_MOST_TEXT] for text in messages),
    )


def judge_failure(what: str, job: FailingJob, facts: Sequence[tuple[int, FailureFacts]]) -> list[Finding]:
    """Every other rank has ended in time, and one of them has said which rank was lost."""
    verdicts = [(rank, verdict) for rank, one in facts if (verdict := _about(job, rank, one)) is not None]
    names = f"rank {job.failing}"
    said = [text for rank, one in facts for text in one.messages if rank != job.failing and names in text]
    own = [text for rank, one in facts for text in one.messages if rank == job.failing]
    times = [one.released_s for _, one in facts if one.released_s is not None]
    if not verdicts and not (said or own):
        fix = "the job ended, but without a reason: send us this output"
        verdicts.append((0, Verdict(state=PROBLEM, detail=f"no rank says that {names} was lost", fix=fix)))
    slowest = f"after {max(times):.1f} s" if times else "at once"
    ok = f"{names} was lost, the others have ended {slowest} at the latest ({(said or own or [''])[0]})"
    return findings_of(what, verdicts, ok=ok, size=job.size, facts=facts)


def _about(job: FailingJob, rank: int, one: FailureFacts) -> Verdict | None:
    text = f": {one.messages[-1]}" if one.messages else ""
    if one.exit_code is None:
        where = "after the failure" if one.is_ready else "and did not come to the failure"
        fix = "a failing rank would leave this one waiting until it is killed: send us this output"
        return Verdict(state=PROBLEM, detail=f"has not ended within {LIMIT_S:g} s {where}{text}", fix=fix)
    if not one.is_ready:
        fix = "a second process on this device may not be allowed (compute mode, memory), or a port is closed"
        return Verdict(state=PROBLEM, detail=f"the second job did not start{text}", fix=fix)
    if rank == job.failing:
        return None
    if one.exit_code == 0:
        fix = "a job that has lost a rank would be taken for a success: send us this output"
        return Verdict(
            state=PROBLEM, detail=f"has ended with exit code 0 although rank {job.failing} was lost", fix=fix
        )
    if one.released_s is not None and one.released_s > MOST_S:
        fix = f"other ranks must end within {MOST_S:g} s: send us this output"
        return Verdict(
            state=PROBLEM, detail=f"has ended only {one.released_s:.1f} s after rank {job.failing}{text}", fix=fix
        )
    return None
