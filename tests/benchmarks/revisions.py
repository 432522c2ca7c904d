"""Compare two git revisions: `nox -s compare -- REV_A REV_B [--workload W] [--cluster C]`; exit code 4 on a regression.

Both revisions' jobs are started once, side by side, and then take turns: in each round both measure a block of steps, in an
order drawn anew, while the other sleeps. So start-up is paid once and slow minutes of the machine hit both. The first round
warms up and does not count, nor do leading steps of a block that are unlike its others. A revision may also be a folder
that holds the packages: "." is the working tree as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shlex
import subprocess
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.cli.offline import REGRESSION
from autotune.jobs.job import default_results
from autotune.results.judge.compare import Change, Changes, paired_change
from autotune.results.judge.series import Run, Runs, Series
from autotune.results.judge.stats import ALARM_CONFIDENCE
from autotune.results.show.compare_console import show_changes
from autotune.results.show.report_console import make_console
from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.workloads.cluster import CLUSTER_FOLDER, Cluster, load_cluster
from autotune.workloads.errors import AutotuneError, SpecError
from autotune.workloads.files import safe_name
from autotune.workloads.serial import to_data
from tests.benchmarks.revision_job import RevisionJob
from tests.mpi.launch import ROOT

ROUNDS = 20
STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What the comparison of two revisions ends with."""

    changes: Changes
    runs: Runs


def check_out(revision: str, folder: Path) -> Path:
    """The packages of a revision, without touching the repository; a folder is taken as it is."""
    if Path(revision).is_dir():
        if not (Path(revision) / "autotune" / "jobs" / "context.py").exists():
            raise SpecError(f"folder {revision!r} does not hold the packages: name a git revision, or their folder")
        return Path(revision).resolve()
    done = subprocess.run(["git", "archive", "--format=zip", revision], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise SpecError(f"no revision {revision!r}: {done.stderr.decode().strip().splitlines()[0]}")
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return folder


def compare_revisions(options: argparse.Namespace) -> Found:
    """Start both, let them take turns, judge."""
    revisions = [options.before, options.after]
    cluster, arguments = _job_arguments(options)
    with tempfile.TemporaryDirectory(prefix="autotune-compare-") as name, ExitStack() as stack:
        folder = Path(name)
        sources = [check_out(revision, folder / side) for side, revision in zip("ab", revisions, strict=True)]
        jobs = []
        for side, revision, packages in zip("ab", revisions, sources, strict=True):
            job = RevisionJob(revision, packages, folder / f"job-{side}", arguments, len(cluster.devices))
            stack.callback(job.close)
            jobs.append(job)
        for job in jobs:
            job.wait_ready()
        answers = take_turns(jobs, options.rounds, options.steps, options.seed)
    return _judge(options, cluster, answers)


def take_turns(jobs: list[RevisionJob], rounds: int, steps: int, seed: int) -> list[list[dict[str, Any]]]:
    """The blocks of each job, round by round; the first round is not kept."""
    generator = random.Random(seed)
    answers: list[list[dict[str, Any]]] = [[] for _ in jobs]
    for _ in range(rounds + 1):
        for index in generator.sample(range(len(jobs)), len(jobs)):
            answers[index].append(jobs[index].block(steps))
    return [blocks[1:] for blocks in answers]


def _judge(options: argparse.Namespace, cluster: Cluster, answers: list[list[dict[str, Any]]]) -> Found:
    sides = ("before", "after")
    what = f"{options.workload} on {cluster.name}"
    runs = tuple(
        Run(series=side, round_number=number, steps_s=tuple(block["steps_s"]), cpu_s_per_step=block["cpu_s"])
        for side, blocks in zip(sides, answers, strict=True)
        for number, block in enumerate(blocks)
    )
    step = paired_change(*(_series(runs, side, "step time", "step_s") for side in sides))
    cpu = paired_change(*(_series(runs, side, "CPU time of a step, all ranks", "cpu_s_per_step") for side in sides))
    note = f"{what} ({cluster.label}), {options.rounds} rounds of {options.steps} steps. The exit code is that of the step time."
    changes = Changes(
        before=options.before,
        after=options.after,
        in_one_job=True,
        confidence=ALARM_CONFIDENCE,
        rows=(step, cpu),
        notes=(note,),
    )
    kept = Runs(
        what=what,
        label=cluster.label,
        runs=runs,
        environment=describe_environment(),
        command=shlex.join(["nox", "-s", "compare", "--", *sys.argv[1:]]),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return Found(changes=changes, runs=kept)


def _series(runs: tuple[Run, ...], side: str, name: str, figure: str) -> Series:
    return Series(name=name, rounds_s=tuple(getattr(run, figure) for run in runs if run.series == side))


def _job_arguments(options: argparse.Namespace) -> tuple[Cluster, list[str]]:
    """The cluster, and the arguments of both jobs: the same cluster file for both."""
    cluster = load_cluster(options.cluster)
    cluster = cluster.for_ranks(2) if cluster.any_ranks else cluster
    is_file = options.cluster.endswith(".toml")
    file = Path(options.cluster) if is_file else CLUSTER_FOLDER / f"{options.cluster}.toml"
    plan = [str(Path(options.plan).resolve())] if options.plan else []
    return cluster, [options.workload, str(file.resolve()), *plan]


def exit_code(step: Change) -> int:
    """4 where the step time is worse beyond noise."""
    return REGRESSION if step.verdict == "worse" else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s compare --", description=__doc__)
    parser.add_argument("before", metavar="REV_A")
    parser.add_argument("after", metavar="REV_B")
    parser.add_argument("workload", nargs="?", default="vgg")
    parser.add_argument("cluster", nargs="?", default="mixed4", help="a cluster by name, or a TOML file")
    parser.add_argument(
        "--plan", help="a file of `autotune best --export`; default: our reducer, samples by stated speed"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a block (default {STEPS})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    try:
        found = compare_revisions(options)
    except AutotuneError as error:
        sys.stderr.write(f"compare: error: {error}\n")
        return error.exit_code
    folder = default_results() / "compare"
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{safe_name(options.before)}..{safe_name(options.after)}.json", found.runs)
    if options.json:
        print(json.dumps(to_data(found.changes), indent=1))
    else:
        show_changes(make_console(stream=sys.stdout, terminal=sys.stdout.isatty()), found.changes)
    return exit_code(found.changes.rows[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
