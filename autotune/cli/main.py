"""The command line: from what was typed to a job. What a command does is in the module of its name, imported when it is called."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import TextIO

from autotune.cli.parser import build_parser
from autotune.jobs.job import Job, parse_options
from autotune.jobs.question import Aim, Question
from autotune.results.store.command_line import default_results
from autotune.runtime.control.mpi import launched_rank
from autotune.workloads.errors import AutotuneError
from autotune.workloads.registry import split_workload

_FIRST_WORD_S = 1.0
"""How long other ranks wait before they leave with an error, so that mpirun does not end rank 0 before it has spoken."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code. Under mpirun only rank 0 speaks."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not launched_rank():
        return _run(arguments)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123 - not a path of ours
            return _run(arguments, parser_errors=nowhere)
    except SystemExit:
        time.sleep(_FIRST_WORD_S)
        raise


def _run(arguments: list[str], parser_errors: TextIO | None = None) -> int:
    with redirect_stderr(parser_errors or sys.stderr):
        options = build_parser().parse_args(arguments)
    try:
        return int(COMMANDS[options.asked](options, arguments))
    except AutotuneError as error:
        if launched_rank():
            time.sleep(_FIRST_WORD_S)
        else:
            sys.stderr.write(f"autotune: error: {error}\n")
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _job(options: argparse.Namespace, arguments: list[str]) -> Job:
    workload, named = split_workload(options.workload)
    return Job(
        workload=workload,
        options=named | parse_options(options.set),
        clusters=_names(options.cluster),
        results=options.results or default_results(),
        seed=options.seed,
        rounds=options.rounds,
        timeout_s=options.timeout,
        command=shlex.join(["autotune", *arguments]),
    )


def _run_sweep(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.on_ranks import run_sweep  # noqa: PLC0415 - a command loads what it needs when it is called

    job = dataclasses.replace(
        _job(options, arguments),
        study=options.study,
        trials=options.trials,
        time_s=options.time,
        sampler=options.sampler,
        allow_lossy=options.allow_lossy,
        transports=_names(options.transports),
        codecs=_names(options.codecs),
        warmup=options.warmup,
        steps=options.steps,
    )
    return run_sweep(job, options.ranks, arguments, as_json=options.json, quiet=options.quiet)


def _run_train(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.on_ranks import run_train  # noqa: PLC0415

    job = dataclasses.replace(
        _job(options, arguments),
        plan=options.plan,
        train_steps=options.steps,
        online=options.online,
        replay=options.replay,
        trace=options.trace,
    )
    return run_train(job, options.ranks, arguments, as_json=options.json, quiet=options.quiet)


def _run_race(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.on_ranks import run_race  # noqa: PLC0415

    job = dataclasses.replace(
        _job(options, arguments), trials=options.trials, warmup=options.warmup, steps=options.steps
    )
    return run_race(job, options.ranks, arguments, as_json=options.json, quiet=options.quiet)


def _run_profile(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.on_ranks import run_profile  # noqa: PLC0415

    job = dataclasses.replace(_job(options, arguments), transports=_names(options.transports), trace=options.trace)
    return run_profile(job, options.ranks, arguments, as_json=options.json, quiet=options.quiet)


def _question(options: argparse.Namespace, job: Job, plan: str | None = None) -> Question:
    return Question(
        job=job, num_ranks=options.ranks, profiles=tuple(options.profile), what_if=tuple(options.what_if), plan=plan
    )


def _run_simulate(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.predict import simulate  # noqa: PLC0415

    question = _question(options, _job(options, arguments), options.plan)
    return simulate(question, trace=options.trace, as_json=options.json)


def _run_plan(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.predict import plan  # noqa: PLC0415

    job = dataclasses.replace(
        _job(options, arguments), allow_lossy=options.allow_lossy, transports=_names(options.transports)
    )
    aim = Aim(objective=options.objective, min_throughput=options.min_throughput, method=options.method)
    return plan(_question(options, job), aim, export=options.export, as_json=options.json)


def _run_schedule(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.cli.schedule import Request, schedule  # noqa: PLC0415

    request = Request(
        file=options.file,
        micro_batches=options.micro_batches,
        time_s=options.time,
        csv=options.csv,
        trace=options.trace,
    )
    return schedule(request, as_json=options.json, quiet=options.quiet)


def _run_doctor(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.cli.offline import doctor  # noqa: PLC0415

    return doctor(options.results or default_results(), options.ranks, as_json=options.json)


def _run_best(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.cli.offline import best  # noqa: PLC0415

    results = options.results or default_results()
    return best(results, options.workload, options.cluster, options.export, as_json=options.json)


def _run_report(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.cli.offline import report  # noqa: PLC0415

    results = options.results or default_results()
    return report(results, options.study, options.trace, options.trial, as_json=options.json)


def _run_compare(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.cli.offline import compare  # noqa: PLC0415

    return compare(options.results or default_results(), options.before, options.after, as_json=options.json)


def _run_lab(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.lab import actions  # noqa: PLC0415

    if options.action == "up":
        return actions.up(options.cluster, options.name, as_json=options.json)
    if options.action == "run":
        return actions.run(options.name, [word for index, word in enumerate(options.command) if index or word != "--"])
    return (actions.status if options.action == "status" else actions.down)(options.name, as_json=options.json)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


COMMANDS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "doctor": _run_doctor,
    "sweep": _run_sweep,
    "train": _run_train,
    "race": _run_race,
    "profile": _run_profile,
    "simulate": _run_simulate,
    "plan": _run_plan,
    "schedule": _run_schedule,
    "best": _run_best,
    "report": _run_report,
    "compare": _run_compare,
    "lab": _run_lab,
}
