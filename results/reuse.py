"""The command lines that a report ends with: they take the sweep's own workload, mix and results folder."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from results.record import StudyInfo
from results.report_data import Command

CARRIED = ("--set", "--results")
"""Options of the sweep that the next command needs too, or it would not find the plan."""


def next_commands(info: StudyInfo, *, num_ranks: int, best_file: str | None, finished: bool) -> tuple[Command, ...]:
    """How to use the plan, how to go on with an unfinished sweep, how to see the report again."""
    words = _split(info.command)
    carried = [part for option in CARRIED for value in _values(words, option) for part in (option, value)]
    commands = []
    if best_file is not None:
        workload = _option(words, "--workload") or info.workload.name
        train = ["mpirun", "-n", str(num_ranks), "autotune", "train", "--workload", workload]
        train += ["--cluster", _cluster(info, words), "--plan", "best", *carried]
        commands.append(Command(purpose="train with this plan", line=shlex.join(train)))
    if not finished and info.command:
        commands.append(Command(purpose="go on with the sweep", line=info.command))
    again = shlex.join(["autotune", "report", info.name, *carried])
    return (*commands, Command(purpose="see this report again", line=again))


def _cluster(info: StudyInfo, words: list[str]) -> str:
    """The mix as the user named it: a file's path, or a name without the suffix that fewer ranks add."""
    given = [name for name in (_option(words, "--cluster") or "").split(",") if name]
    if len(given) == 1:
        return given[0]
    for name in given:
        stem = PurePath(name).stem
        if info.cluster.name == stem or info.cluster.name.startswith(f"{stem}-first"):
            return name
    return info.cluster.name


def _option(words: list[str], option: str) -> str:
    """The last value given to an option; empty where it was not given."""
    return next(reversed(_values(words, option)), "")


def _values(words: list[str], option: str) -> list[str]:
    """Every value given to an option, as `--option value` or `--option=value`."""
    values = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            values.append(following)
        elif word.startswith(f"{option}="):
            values.append(word.partition("=")[2])
    return values


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
