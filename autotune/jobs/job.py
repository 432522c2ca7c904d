"""What the user asked for, checked at the door: before MPI starts where possible, and by rank 0 alone where not."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from autotune.results.store import environment
from autotune.results.store.best import BEST_FOLDER
from autotune.results.store.command_line import JobWords, default_results
from autotune.results.store.record import BestPlan
from autotune.results.store.store import read_json, safe_name, writable_folder
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.errors import SpecError, StoreError, unknown_name
from autotune.workloads.plan import CODECS, LOSSLESS_CODECS, ONE_ROUND_CODECS, TRANSPORTS
from autotune.workloads.registry import check_workload_name
from autotune.workloads.scenario import ChangingCluster
from autotune.workloads.scenario_file import load_scenario

RACE_FOLDER = "race"
_PLAN_FILES = "--plan takes `best` or a file from `autotune best --export`"
LAB_VARIABLE = environment.LAB_VARIABLE
"""Set for what runs in a lab: its figures are labelled so, and its links are not paced as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A sweep or a training run, as asked for."""

    workload: str
    options: dict[str, str] = field(default_factory=dict)
    clusters: tuple[str, ...]
    results: Path = field(default_factory=default_results)
    seed: int = 0
    command: str = ""
    study: str | None = None
    trials: int = 20
    time_s: float | None = None
    sampler: str = "tpe"
    allow_lossy: bool = False
    transports: tuple[str, ...] = ("gloo", "mpi")
    codecs: tuple[str, ...] = ONE_ROUND_CODECS
    """What to choose from, if lossy codecs are allowed."""
    warmup: int = 2
    steps: int | None = None
    """Scored steps per trial; None: as many as take about a second."""
    timeout_s: float = 120.0
    rounds: int = 10
    plan: str = "best"
    train_steps: int = 100
    trace: Path | None = None
    """Where to write the trace of one step, for ui.perfetto.dev."""
    replay: str | None = None
    """A trace to replay while the job runs, by name or file."""
    online: bool = False
    """Whether training may go on by another plan when devices or links change."""

    @property
    def workload_name(self) -> str:
        """The workload with its options: what files and reports call it."""
        return ",".join([self.workload, *(f"{key}={value}" for key, value in sorted(self.options.items()))])

    @property
    def study_name(self) -> str:
        return self.study or safe_name(self.workload_name)

    def words(self, num_ranks: int) -> JobWords:
        """What the job is about, for the commands that messages suggest."""
        return JobWords(
            workload=self.workload,
            options=self.options,
            cluster=self.clusters[0],
            num_ranks=num_ranks,
            results=self.results,
            lab=os.environ.get(LAB_VARIABLE, ""),
        )


def parse_options(pairs: list[str]) -> dict[str, str]:
    """`["norm=batch"]` -> {"norm": "batch"}."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SpecError(f"--set {pair!r}: write KEY=VALUE, such as --set global_batch=128")
        options[key] = value
    return options


def check_job(job: Job, num_ranks: int) -> tuple[Cluster, ...]:
    """Refuse what cannot work; the clusters as a job of `num_ranks` runs on them. Loads neither torch nor MPI."""
    check_workload_name(job.workload)
    _check_numbers(job)
    _check_names(job)
    in_lab = bool(os.environ.get(LAB_VARIABLE))
    loaded = [dataclasses.replace(load_cluster(spec), in_lab=in_lab) for spec in job.clusters]
    clusters = tuple(cluster.for_ranks(num_ranks) for cluster in loaded)
    if not clusters or len({cluster.name for cluster in clusters}) < len(clusters):
        raise SpecError(
            f"--cluster {','.join(job.clusters)!r} names no mix, or one twice: name each once, such as mixed4"
        )
    if job.replay is not None:
        trace = load_scenario(job.replay)
        for cluster in clusters:
            ChangingCluster(cluster, trace)
    writable_folder(job.results)
    return clusters


def check_started(job: Job) -> None:
    """Refuse a job of one rank that no mpirun has started, where the clusters have several devices."""
    loaded = [load_cluster(spec) for spec in job.clusters]
    several = [cluster for cluster in loaded if len(cluster.devices) > 1]
    if several:
        num_ranks = min(len(cluster.devices) for cluster in several)
        words = job.words(num_ranks)
        raise SpecError(
            f"cluster {several[0].name!r} has {len(several[0].devices)} devices but the job has 1 rank: was mpirun forgotten? "
            f"Start `{words.started(job.command) if job.command else words.command('sweep')}`, or add --ranks {num_ranks} "
            "(--ranks 1 for one device only)"
        )


def _check_numbers(job: Job) -> None:
    counts = {
        "--trials": job.trials,
        "--steps": job.train_steps if job.steps is None else job.steps,
        "--warmup": job.warmup,
        "--rounds": job.rounds,
    }
    for what, count in counts.items():
        if count < 1:
            raise SpecError(f"{what} is {count}: it must be at least 1")
    for what, seconds in (("--timeout", job.timeout_s), ("--time", job.time_s)):
        if seconds is not None and seconds <= 0:
            raise SpecError(f"{what} is {seconds}: it must be above 0 seconds")


def _check_names(job: Job) -> None:
    if not job.transports:
        raise SpecError("--transports names none: name at least one, such as gloo")
    for transport in job.transports:
        if transport not in TRANSPORTS:
            raise unknown_name("transport", transport, TRANSPORTS)
    for codec in job.codecs:
        if codec not in CODECS:
            raise unknown_name("codec", codec, CODECS)
    if not set(job.codecs) & set(LOSSLESS_CODECS):
        raise SpecError(f"--codecs {','.join(job.codecs)!r} has no lossless one: name none as well, to compare with")
    if "/" in job.study_name or job.study_name in ("", ".", "..", BEST_FOLDER, RACE_FOLDER):
        raise SpecError(
            f"--study {job.study_name!r}: a study's name becomes a folder: no slash, and not {BEST_FOLDER!r} "
            f"or {RACE_FOLDER!r}"
        )


def race_file(job: Job, cluster: Cluster) -> Path:
    """Where the result of a race is kept."""
    return job.results / RACE_FOLDER / f"{safe_name(job.workload_name)}@{safe_name(cluster.name)}.json"


def read_plan_file(path: str) -> BestPlan:
    """A plan as `autotune sweep` keeps it and `autotune best --export` writes it."""
    if not Path(path).exists():
        raise SpecError(f"no plan file {path!r}: name a file, or use --plan best for the one kept by the last sweep")
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path!r}: {error.strerror}: {_PLAN_FILES}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path!r} is no plan (not JSON): {_PLAN_FILES}") from error
    if not isinstance(data, dict):
        raise StoreError(f"{path!r} is no plan (JSON, but no table): {_PLAN_FILES}")
    try:
        return read_json(BestPlan, Path(path))
    except SpecError as error:
        raise SpecError(f"{error}; {_PLAN_FILES}") from error
