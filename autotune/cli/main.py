"""The entry point: parse the command line, make the job, call the command. A command's module is imported when it is called."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TextIO

from autotune.cli.extensions import load_modules
from autotune.cli.from_options import make_job
from autotune.cli.parser import build_parser
from autotune.jobs.job import ProfileJob, RaceJob, SweepJob, TrainJob
from autotune.jobs.question import Aim, Question
from autotune.results.store.command_line import default_results
from autotune.runtime.launch.launcher import launcher_of, reporting_rank
from autotune.workloads.errors import AutotuneError, SpecError

if TYPE_CHECKING:
    from autotune.cli.on_ranks import Launch

_REPORT_S = 1.0
"""How long other ranks wait before they exit with an error, so that mpirun does not end rank 0 before it has reported it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code. Of several ranks only rank 0 prints."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not reporting_rank(os.environ):
        return _run(arguments)
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # noqa: PTH123 - not a path of ours
            return _run(arguments, parser_errors=nowhere)
    except SystemExit:
        time.sleep(_REPORT_S)
        raise


def _run(arguments: list[str], parser_errors: TextIO | None = None) -> int:
    try:
        load_modules(arguments)
        with redirect_stderr(parser_errors or sys.stderr):
            options = build_parser().parse_args(arguments)
        return int(COMMANDS[options.subcommand](options, arguments))
    except AutotuneError as error:
        if reporting_rank(os.environ):
            time.sleep(_REPORT_S)
        else:
            sys.stderr.write(f"autotune: error: {error}\n")
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run_sweep(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.rank_commands import run_sweep  # noqa: PLC0415 - a command loads what it needs when it is called

    return run_sweep(make_job(SweepJob, options, arguments), _launch(options, arguments))


def _run_train(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.rank_commands import run_train  # noqa: PLC0415

    return run_train(make_job(TrainJob, options, arguments), _launch(options, arguments))


def _run_race(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.rank_commands import run_race  # noqa: PLC0415

    return run_race(make_job(RaceJob, options, arguments), _launch(options, arguments))


def _run_profile(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.rank_commands import run_profile  # noqa: PLC0415

    return run_profile(make_job(ProfileJob, options, arguments), _launch(options, arguments))


def _launch(options: argparse.Namespace, arguments: list[str]) -> Launch:
    from autotune.cli.on_ranks import Launch  # noqa: PLC0415

    return Launch(num_ranks=options.num_ranks, arguments=arguments, as_json=options.json, quiet=options.quiet)


def _run_simulate(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.predict import simulate  # noqa: PLC0415

    return simulate(make_job(Question, options, arguments), trace=options.trace, as_json=options.json)


def _run_plan(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.predict import plan  # noqa: PLC0415

    aim = Aim(
        objective=options.objective,
        min_throughput=options.min_throughput,
        method=options.method,
        any_plan=options.any_plan,
        placement=options.placement,
        simulations=options.simulations,
        explain=options.explain,
    )
    return plan(make_job(Question, options, arguments), aim, export=options.export, as_json=options.json)


def _run_advise(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.advise import run  # noqa: PLC0415

    return run(options, arguments)


def _run_schedule(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.schedule import Request, schedule  # noqa: PLC0415

    request = Request(
        file=options.file,
        question=make_job(Question, options, arguments) if options.workload else None,
        stages=options.stages,
        micro_batches=options.micro_batches,
        time_s=options.time,
        csv=options.csv,
        trace=options.trace,
    )
    return schedule(request, as_json=options.json, quiet=options.quiet)


def _run_import(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.cli.imports import Request, import_profile  # noqa: PLC0415
    from autotune.results.imports.imported import Asked  # noqa: PLC0415

    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Asked)}
    asked = Asked(**given | {"files": tuple(options.files)})
    return import_profile(Request(asked=asked, format=options.format, output=options.output), as_json=options.json)


def _run_provision(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.provision import run  # noqa: PLC0415

    return run(options, arguments)


def _run_init(options: argparse.Namespace, arguments: list[str]) -> int:
    from autotune.cli.init import init  # noqa: PLC0415

    results = options.results or default_results()
    job = ProfileJob(workload="digits", clusters=("this-machine",), results=results)
    return init(options.output, job, _launch(options, arguments), measure=options.measure)


def _run_doctor(options: argparse.Namespace, arguments: list[str]) -> int:
    """Of a job where a launcher has started several ranks, else of this machine."""
    results = options.results or default_results()
    if _is_one_of_several():
        from autotune.cli.rank_commands import run_doctor  # noqa: PLC0415

        job = ProfileJob(workload="mlp-tiny", clusters=("this-machine",), results=results)
        return run_doctor(job, _launch(options, arguments), options.load)
    from autotune.cli.offline import doctor  # noqa: PLC0415

    return doctor(results, options.num_ranks, as_json=options.json)


def _is_one_of_several() -> bool:
    try:
        return launcher_of(os.environ).size > 1
    except SpecError:
        return False  # the examination of this machine has a line for variables that contradict each other


def _run_choices(options: argparse.Namespace, _arguments: list[str]) -> int:
    from autotune.cli.offline import choices  # noqa: PLC0415

    return choices(as_markdown=options.markdown, as_json=options.json)


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


COMMANDS: dict[str, Callable[[argparse.Namespace, list[str]], int]] = {
    "doctor": _run_doctor,
    "init": _run_init,
    "sweep": _run_sweep,
    "train": _run_train,
    "race": _run_race,
    "profile": _run_profile,
    "import": _run_import,
    "simulate": _run_simulate,
    "plan": _run_plan,
    "advise": _run_advise,
    "schedule": _run_schedule,
    "provision": _run_provision,
    "best": _run_best,
    "report": _run_report,
    "compare": _run_compare,
    "choices": _run_choices,
    "lab": _run_lab,
}
