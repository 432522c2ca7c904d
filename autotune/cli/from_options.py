"""From the command line to a job: one function for all commands."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any, TypeVar

from autotune.jobs.job import Job, SweepJob, parse_options
from autotune.results.store.command_line import default_results
from autotune.workloads.errors import SpecError
from autotune.workloads.registry import split_workload

J = TypeVar("J", bound=Job)


def make_job(kind: type[J], options: argparse.Namespace, arguments: Sequence[str]) -> J:
    """An option fills the field of its name: where the two differ, the parser's `dest` is the field's name."""
    workload, own_options = split_workload(options.workload)
    values: dict[str, Any] = {
        **_of_fields(kind, options),
        "workload": workload,
        "options": own_options | parse_options(options.set),
        "results": options.results or default_results(),
        "command": shlex.join(["autotune", *arguments]),
    }
    job = kind(**values)
    _check_one_cluster(job)
    return job


def _of_fields(kind: type[Job], options: argparse.Namespace) -> dict[str, Any]:
    """The options that are fields of the job; those that repeat are lists in argparse and tuples in a job."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(kind) if field.name in options}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _check_one_cluster(job: Job) -> None:
    """Only a sweep takes several: another job would use the first and silently drop the rest."""
    if len(job.clusters) != 1 and not isinstance(job, SweepJob):
        raise SpecError(
            f"--cluster {','.join(job.clusters)!r} names {len(job.clusters)} clusters: only a sweep takes several, name one"
        )
