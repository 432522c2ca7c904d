"""The command lines that a report ends with: they take the sweep's own workload, cluster and results folder."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePath

from autotune.results.judge.report_data import Command
from autotune.results.store.command_line import JobCommands, results_option, split_command
from autotune.results.store.record import StudyInfo
from autotune.workloads.cluster import load_cluster, stated_name
from autotune.workloads.errors import SpecError
from autotune.workloads.registry import split_workload

_DEFAULT_LAB = "lab"


def next_commands(
    info: StudyInfo, *, num_ranks: int, best_file: str | None, finished: bool, results: Path | None = None
) -> tuple[Command, ...]:
    """How to use the plan, how to go on with an unfinished sweep, how to see the report again.

    `results`: the folder that the study is in; without it, the one that the sweep named.
    """
    own = study_commands(info, num_ranks=num_ranks, results=results)
    commands = []
    if best_file is not None:
        commands.append(Command(purpose="train with this plan", line=own.command("train", "--plan", "best")))
    if not finished and info.command:
        commands.append(Command(purpose="go on with the sweep", line=own.started(info.command)))
    again = shlex.join(["autotune", "report", info.name, *results_option(own.results)])
    return (*commands, Command(purpose="see this report again", line=again))


def study_commands(info: StudyInfo, *, num_ranks: int, results: Path | None = None) -> JobCommands:
    """Of a study, with the names that its own command used."""
    words = split_command(info.command)
    given, folder = _option(words, "--workload"), _option(words, "--results")
    workload, options = split_workload(given or info.workload.name)
    options |= dict(pair.split("=", 1) for pair in _values(words, "--set") if "=" in pair)
    return JobCommands(
        workload=workload,
        options=options,
        cluster=_cluster(info, words),
        num_ranks=num_ranks,
        results=results or (Path(folder) if folder else None),
        lab=info.environment.get("lab", _DEFAULT_LAB) if info.cluster.in_lab else "",
    )


def _cluster(info: StudyInfo, words: list[str]) -> str:
    """The cluster as the user named it: a file's path, or a name without the suffix that the number of ranks adds."""
    given = [name for name in (_option(words, "--cluster") or "").split(",") if name]
    if len(given) == 1:
        return given[0]
    own = stated_name(info.cluster.name)
    return next((name for name in given if own in (PurePath(name).stem, _name_in(name))), own)


def _name_in(spec: str) -> str:
    """What a cluster file calls its cluster."""
    try:
        return load_cluster(spec).name
    except SpecError:
        return ""


def _option(words: list[str], option: str) -> str:
    """The last value given to an option; empty where it was not given."""
    return next(reversed(_values(words, option)), "")


def _values(words: list[str], option: str) -> list[str]:
    """Every value given to an option, as `--option value` or `--option=value`."""
    values = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word == option:
            values.append(following)
        elif word.startswith(f"{option}="):
            values.append(word.partition("=")[2])
    return values
