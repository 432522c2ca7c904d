"""The training data: simulated random jobs, and the features and gains of their candidates.

Simulated times and features are stored in chunks of jobs, so that an interrupted run continues where it stopped. Features
are stored by their digest: another list of features makes other files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.online.features import FeatureTable, Float32s
from autotune.online.learning import Batch
from autotune.online.message_layout import Floats
from autotune.online.meta_network import NUM_HEADS, features_card
from autotune.online.pretrain.random_jobs import Population, RandomJob, draw_job, observed, simulator_of, window_of
from autotune.online.window import Window
from autotune.profilers.step_stats import PACKED_BYTES, StepStats
from autotune.simulate.simulator import Simulator


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Sizes of the training data, of training and of grading."""

    kept: Path
    """Folder of the simulated jobs."""
    num_jobs: int = 24_000
    num_tried: int = 14
    """Candidates per job."""
    chunk_jobs: int = 1000
    """Jobs per file."""
    epochs: int = 16
    seed: int = 1
    graded_jobs: int = 200
    """Jobs per population."""
    graded_tried: int = 32
    """Candidates per graded job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The simulated times of a job."""

    step: list[StepStats]
    """Of the running plan."""
    step_s: Floats
    """Of each candidate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A window of a job, and the features and gains of its candidates."""

    job: RandomJob
    seen: Window
    window: Float32s
    rows: Float32s
    gains: Floats
    """log(throughput / throughput of the running plan)."""


def simulate_job(job: RandomJob) -> Outcome:
    """Simulate the running plan and all candidates."""
    simulator = simulator_of(job)
    return Outcome(step=observed(simulator, job.running), step_s=step_times(simulator, job))


def step_times(simulator: Simulator, job: RandomJob) -> Floats:
    """Simulated step time of each candidate."""
    return np.array([simulator.step_s(plan) for plan in job.plans], np.float64)


def example_of(job: RandomJob, outcome: Outcome) -> Example:
    """The features and gains of a job."""
    seen = window_of(job, outcome.step)
    window, rows = FeatureTable(job.plans, job.priors).features(seen)
    gains = np.log(outcome.step_s[0] / outcome.step_s)
    return Example(job=job, seen=seen, window=window, rows=rows, gains=gains)


def training_data(settings: Settings, report: Callable[[str], None]) -> Batch:
    """All cases. Each head has its own bootstrap weights of the jobs."""
    found = []
    for number in range(settings.num_jobs // settings.chunk_jobs):
        found.append(_cases(settings, number))
        report(f"{(number + 1) * settings.chunk_jobs} of {settings.num_jobs} jobs")
    window, row, gain, job = (
        np.concatenate([part[name] for part in found]) for name in ("window", "row", "worth", "job")
    )
    draws = np.random.default_rng(settings.seed).poisson(1.0, size=(NUM_HEADS, settings.num_jobs))
    return Batch(
        windows=torch.from_numpy(window),
        rows=torch.from_numpy(row),
        measured=torch.from_numpy(gain),
        weights=torch.from_numpy(draws[:, job].astype(np.float32)),
    )


def _cases(settings: Settings, number: int) -> dict[str, NDArray[Any]]:
    """The features and gains of a chunk of jobs, one row per case; read from a file if it exists."""
    path = settings.kept / f"{settings.num_tried}-{number:03d}-features-{features_card()['features']}.npz"
    if not path.exists():
        jobs = [draw_job(seed, Population(), settings.num_tried) for seed in _seeds(settings, number)]
        examples = [example_of(job, outcome) for job, outcome in zip(jobs, _outcomes(settings, number), strict=True)]
        _write(
            path,
            window=np.concatenate([np.tile(one.window, (len(one.rows), 1)) for one in examples]),
            row=np.concatenate([one.rows for one in examples]),
            worth=np.concatenate([one.gains for one in examples]).astype(np.float32),
            job=np.concatenate([np.full(len(one.rows), one.job.seed) for one in examples]),
        )
    with np.load(path) as stored:
        return dict(stored)


def _outcomes(settings: Settings, number: int) -> list[Outcome]:
    """The simulated times of a chunk of jobs; read from a file if it exists."""
    path, count = settings.kept / f"{settings.num_tried}-{number:03d}.npz", settings.chunk_jobs
    if not path.exists():
        jobs = [draw_job(seed, Population(), settings.num_tried) for seed in _seeds(settings, number)]
        found = [simulate_job(job) for job in jobs]
        packed = {f"step{index}": np.frombuffer(_packed(outcome), np.uint8) for index, outcome in enumerate(found)}
        times = {f"step_s{index}": outcome.step_s for index, outcome in enumerate(found)}
        _write(path, **packed, **times)
    with np.load(path) as stored:
        return [
            Outcome(step=_unpacked(stored[f"step{index}"].tobytes()), step_s=stored[f"step_s{index}"])
            for index in range(count)
        ]


def _seeds(settings: Settings, number: int) -> range:
    return range(number * settings.chunk_jobs, (number + 1) * settings.chunk_jobs)


def _packed(outcome: Outcome) -> bytes:
    return b"".join(entry.pack() for entry in outcome.step)


def _unpacked(content: bytes) -> list[StepStats]:
    starts = range(0, len(content), PACKED_BYTES)
    return [StepStats.unpack(content[start : start + PACKED_BYTES]) for start in starts]


def _write(path: Path, **arrays: NDArray[Any]) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (unfinished := path.with_suffix(".part")).open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    unfinished.replace(path)
