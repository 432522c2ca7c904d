"""`autotune provision`: options in, one job called, its document shown or written."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from autotune.cli.from_options import make_job
from autotune.cli.offline import write
from autotune.cli.terminal import console
from autotune.jobs.provision.job import ProvisionJob, provision
from autotune.jobs.question import Question
from autotune.workloads.errors import SpecError

T = TypeVar("T")


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Exit code 3, by its error, if no plan meets the floor within the limits."""
    job = ProvisionJob(
        file=options.file,
        question=_question(options, arguments),
        examples=options.examples,
        min_throughput=options.min_throughput,
        limits=_pairs(options.limit, "--limit", "TYPE=N", _whole),
        prices=options.prices,
        entries=_pairs(options.price_of, "--price-of", "TYPE=ENTRY", str),
        spot=options.spot,
        region=options.region,
        method=options.method,
        budget=options.budget,
        front_step=options.front,
        time_s=options.time,
        seed=options.seed,
    )
    document = provision(job)
    if options.html is not None:
        _write_html(options.html, document)
    if options.json:
        write(document)
        return 0
    from autotune.results.show.provision_console import show_provision  # noqa: PLC0415 - rich is not needed for JSON

    show_provision(console(), document)
    return 0


def _question(options: argparse.Namespace, arguments: Sequence[str]) -> Question | None:
    if options.workload is None:
        if options.file is None:
            return None
        used = [name for name, value in (("--profile", options.profiles), ("--set", options.set)) if value]
        if used:
            raise SpecError(f"{used[0]} needs --workload: a FILE.json has its own times")
        return None
    return make_job(Question, options, arguments)


def _pairs(texts: Sequence[str], option: str, form: str, convert: Callable[[str], T | None]) -> dict[str, T]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        converted = convert(value) if equals and name and value else None
        if converted is None:
            raise SpecError(f"{option} is {text!r}: write {option} {form}")
        found[name] = converted
    return found


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 13 else None


def _write_html(path: Path, document: dict[str, object]) -> None:
    if "front" not in document:
        raise SpecError("--html draws the front: add --front")
    from autotune.results.show.provision_html import front_page  # noqa: PLC0415

    try:
        path.write_text(front_page(document), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {str(path)!r}: {error.strerror}: name another file with --html") from error
