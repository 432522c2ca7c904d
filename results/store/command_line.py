"""Command lines that reports and messages print, written in one place, so that they work when pasted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.results.store.environment import available_cores
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.registry import split_workload

RESULTS_VARIABLE = "AUTOTUNE_RESULTS"
ANY_CLUSTER = "this-machine"
_MOST_RANKS = 4
"""Of a job that is suggested to a user who has named no cluster."""


def default_results() -> Path:
    """The results folder where --results is not given."""
    return Path(os.environ.get(RESULTS_VARIABLE) or Path("results") / "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCommands:
    """The command lines for one workload on one cluster."""

    workload: str
    """As --workload takes it, without options."""
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = ANY_CLUSTER
    """As the user named it: a shipped name or a file."""
    num_ranks: int
    results: Path | None = None
    """None: the default folder."""
    lab: str = ""
    """The lab in which the job runs, if any."""

    def command(self, verb: str, *more: str) -> str:
        """`autotune VERB` on all ranks."""
        words = ["autotune", verb, "--workload", self.workload]
        words += [word for key, value in sorted(self.options.items()) for word in ("--set", f"{key}={value}")]
        words += ["--cluster", self.cluster, *more, *results_option(self.results)]
        return self.started(shlex.join(words))

    def started(self, command: str) -> str:
        """A command as it is started on all ranks; one with --ranks starts mpirun itself."""
        if any(word.partition("=")[0] == "--ranks" for word in split_command(command)):
            return command
        if self.lab:
            return f"autotune lab run --name {shlex.quote(self.lab)} -- {command}"
        return f"mpirun -n {self.num_ranks} {command}"


def results_option(results: Path | None) -> list[str]:
    """--results, where the folder is not the default one."""
    return [] if results in (None, default_results()) else ["--results", str(results)]


def first_sweep(results: Path, workload: str | None = None, cluster: str | None = None) -> str:
    """The sweep to start with, where no sweep has made what was requested; names may be those of files and reports."""
    spec, options = split_workload(workload or "vgg")
    ranks, name = min(available_cores(), _MOST_RANKS), ANY_CLUSTER
    try:
        loaded = load_cluster(cluster or ANY_CLUSTER)
    except SpecError:
        pass
    else:
        name = cluster or ANY_CLUSTER
        ranks = ranks if loaded.any_ranks else len(loaded.devices)
    commands = JobCommands(workload=spec, options=options, cluster=name, num_ranks=ranks, results=results)
    return commands.command("sweep")


def split_command(command: str) -> list[str]:
    """The words of a command, also of one that no shell would accept."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
