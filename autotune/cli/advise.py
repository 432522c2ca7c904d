"""`autotune advise`: options in, one job called, its answer shown or written."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from autotune.cli.from_options import make_job
from autotune.cli.offline import write
from autotune.cli.terminal import STDERR, console
from autotune.jobs.advise.job import AdviseJob, advise
from autotune.jobs.question import Aim
from autotune.workloads.serial import to_data


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Every change or subset, with its best plan."""
    job = make_job(AdviseJob, options, arguments)
    progress = console(STDERR, quiet=options.quiet)
    with progress.status("reading the model") as status:
        answer = advise(job, Aim(objective=options.objective), lambda text: status.update(f"planning for {text}"))
    if options.json:
        write(to_data(answer))
        return 0
    from autotune.results.show.advise_console import show_advised  # noqa: PLC0415 - rich is not needed for JSON

    show_advised(console(), answer)
    return 0
