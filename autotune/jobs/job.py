"""One dataclass per command, and its validation: before MPI starts where possible, else by rank 0 alone."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

from autotune.results.store import environment
from autotune.results.store.best import BEST_FOLDER
from autotune.results.store.command_line import JobCommands, default_results
from autotune.results.store.record import BestPlan
from autotune.results.store.store import read_json, writable_folder
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.changes.scenario_file import load_scenario
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.errors import SpecError, StoreError, unknown_name
from autotune.workloads.files import PATH_NAME_RULE, is_path_name, json_of, read_text, safe_name, shown
from autotune.workloads.plan import CODECS, TRANSPORTS, cpu_transports, lossless_codecs, one_round_codecs
from autotune.workloads.registry import check_workload_name

RACE_FOLDER = "race"
_PLAN_FILES = "--plan takes `best` or a file from `autotune best --export`"
_COUNTS = {"trials": "--trials", "steps": "--steps", "warmup": "--warmup", "rounds": "--rounds"}
_DURATIONS = {"timeout_s": "--timeout", "time_s": "--time"}
LAB_VARIABLE = environment.LAB_VARIABLE
"""Set for what runs in a lab: its figures are labelled so, and its links are not paced as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What the jobs of all commands have in common."""

    workload: str
    options: dict[str, str] = field(default_factory=dict)
    """Of the workload, as --set names them."""
    clusters: tuple[str, ...]
    """Names or files."""
    results: Path = field(default_factory=default_results)
    seed: int = 0
    command: str = ""
    """As it was typed."""
    rounds: int = 10
    """Of an interleaved comparison, or of a profile."""
    timeout_s: float = 120.0
    """Of one trial."""
    transports: tuple[str, ...] = field(default_factory=cpu_transports)
    """To choose from, or to measure."""
    allow_lossy: bool = False
    """Whether a plan may change gradients."""
    replay: str | None = None
    """A scenario to replay while the job runs, by name or file."""

    @property
    def workload_name(self) -> str:
        """The workload with its options: the name in files and reports."""
        return ",".join([self.workload, *(f"{key}={value}" for key, value in sorted(self.options.items()))])

    def commands(self, num_ranks: int) -> JobCommands:
        """The command lines for this workload and cluster that messages suggest."""
        return JobCommands(
            workload=self.workload,
            options=self.options,
            cluster=self.clusters[0],
            num_ranks=num_ranks,
            results=self.results,
            lab=os.environ.get(LAB_VARIABLE, ""),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepJob(Job):
    """`autotune sweep`."""

    study: str | None = None
    """None: named after the workload."""
    trials: int = 20
    time_s: float | None = None
    sampler: str = "tpe"
    codecs: tuple[str, ...] = field(default_factory=one_round_codecs)
    """To choose from, if lossy codecs are allowed."""
    warmup: int = 2
    steps: int | None = None
    """Scored steps per trial; None: as many as take about a second."""

    @property
    def study_name(self) -> str:
        return self.study or safe_name(self.workload_name)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainJob(Job):
    """`autotune train`."""

    plan: str = "best"
    """`best`, or a file."""
    steps: int = 100
    trace: Path | None = None
    """Where to write the trace of one step, for ui.perfetto.dev."""
    online: bool = False
    """Whether the plan may change while training, when devices or links change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RaceJob(Job):
    """`autotune race`."""

    trials: int = 10
    """Of each contender."""
    warmup: int = 2
    steps: int = 4
    """Scored steps per trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileJob(Job):
    """`autotune profile`."""

    trace: Path | None = None
    """Where to write the trace of one step, for ui.perfetto.dev."""


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
    """Refuse what cannot work; returns the clusters of a job of `num_ranks`. Loads neither torch nor MPI."""
    check_workload_name(job.workload)
    _check_numbers(job)
    _check_transports(job.transports)
    if isinstance(job, SweepJob):
        _check_codecs(job.codecs)
        _check_study(job.study_name)
    in_lab = bool(os.environ.get(LAB_VARIABLE))
    loaded = [dataclasses.replace(load_cluster(spec), in_lab=in_lab) for spec in job.clusters]
    clusters = tuple(cluster.for_ranks(num_ranks) for cluster in loaded)
    if not clusters or len({cluster.name for cluster in clusters}) < len(clusters):
        raise SpecError(
            f"--cluster {','.join(job.clusters)!r} names no cluster, or one twice: name each once, such as mixed4"
        )
    if job.replay is not None:
        scenario = load_scenario(job.replay)
        for cluster in clusters:
            ChangingCluster(cluster, scenario)
    writable_folder(job.results)
    return clusters


def check_started(job: Job) -> None:
    """Refuse a job of one rank that no mpirun has started, where the clusters have several devices."""
    loaded = [load_cluster(spec) for spec in job.clusters]
    several = [cluster for cluster in loaded if len(cluster.devices) > 1]
    if several:
        num_ranks = min(len(cluster.devices) for cluster in several)
        commands = job.commands(num_ranks)
        raise SpecError(
            f"cluster {several[0].name!r} has {len(several[0].devices)} devices but the job has 1 rank: was mpirun forgotten? "
            f"Start `{commands.started(job.command) if job.command else commands.command('sweep')}`, or add --ranks {num_ranks} "
            "(--ranks 1 for one device only)"
        )


def _check_numbers(job: Job) -> None:
    """Of the numbers that this kind of job has."""
    for name, option in _COUNTS.items():
        if (count := getattr(job, name, None)) is not None and count < 1:
            raise SpecError(f"{option} is {count}: it must be at least 1")
    for name, option in _DURATIONS.items():
        if (seconds := getattr(job, name, None)) is not None and seconds <= 0:
            raise SpecError(f"{option} is {seconds}: it must be above 0 seconds")


def _check_transports(transports: tuple[str, ...]) -> None:
    if not transports:
        raise SpecError("--transports names none: name at least one, such as gloo")
    for transport in transports:
        if transport not in TRANSPORTS:
            raise unknown_name("transport", transport, TRANSPORTS)


def _check_codecs(codecs: tuple[str, ...]) -> None:
    for codec in codecs:
        if codec not in CODECS:
            raise unknown_name("codec", codec, CODECS)
    if not set(codecs) & set(lossless_codecs()):
        raise SpecError(f"--codecs {','.join(codecs)!r} has no lossless one: name none as well, to compare with")


def _check_study(name: str) -> None:
    if not is_path_name(name) or name in (BEST_FOLDER, RACE_FOLDER):
        raise SpecError(
            f"--study {shown(name)}: a study's name becomes a folder: {PATH_NAME_RULE}, and not {BEST_FOLDER!r} or {RACE_FOLDER!r}"
        )


def race_file(job: Job, cluster: Cluster) -> Path:
    """Where the result of a race is kept."""
    return job.results / RACE_FOLDER / f"{safe_name(job.workload_name)}@{safe_name(cluster.name)}.json"


def read_plan_file(path: str) -> BestPlan:
    """A plan as `autotune sweep` keeps it and `autotune best --export` writes it."""
    if not Path(path).exists():
        raise SpecError(f"no plan file {path!r}: name a file, or use --plan best for the one kept by the last sweep")
    try:
        data = json_of(read_text(path))
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
