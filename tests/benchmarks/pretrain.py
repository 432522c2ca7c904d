"""Pre-train the meta-network on simulated runs, grade it on models and networks it has not seen, and write its card.

`nox -s pretrain` makes `autotune/online/weights/meta.safetensors` and `meta.json`, and the table in docs/online.md.
Simulated runs are kept in chunks below results/data/meta-network, so that an interrupted run goes on where it was.
`-- again`: grade and write anew, of the kept runs and the weights as they are.

The grade of a window is taken over the candidates that were simulated for it: Spearman's correlation of guesses and truth,
and the regret of running the candidate that is guessed best, in per cent of its step over the best one's. Beside the
network: always the default, always what runs, any candidate, the rough guess that is among its inputs, networks that have
learned nothing, and the simulator itself. Its answers are the truth here, so it is asked under two handicaps: with the true links off
by as much as windows misjudge them, and with the links that a window shows, which is all that a run can give it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from autotune.online.features import CANDIDATE_FEATURES, FEATURES_VERSION, WINDOW_FEATURES, Grid
from autotune.online.learning import Batch, pretrain
from autotune.online.meta_network import CARD, HIDDEN, NUM_HEADS, SHIPPED, MetaNetwork, features_card
from autotune.online.priors import seconds_per_byte
from autotune.online.window import Window
from autotune.profilers.step_stats import PACKED_BYTES, StepStats
from autotune.results.judge.stats import spearman
from autotune.results.store.store import write_json
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster
from tests.benchmarks.published_table import put_between
from tests.benchmarks.random_jobs import (
    HELD_OUT_MODELS,
    RandomJob,
    Split,
    draw_job,
    observed,
    simulator_of,
    window_of,
)

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "data" / "meta-network"
WEIGHTS = ROOT / "autotune" / "online" / "weights"
PAGE = ROOT / "docs" / "online.md"
BEGIN, END = "<!-- meta-network -->", "<!-- /meta-network -->"

NUM_JOBS, NUM_TRIED = 24_000, 14
CHUNK = 1000
EPOCHS, SEED = 16, 1
GRADED_JOBS, GRADED_TRIED = 200, 32
FIRST_GRADED = 10_000_000
"""Seeds from here on are graded with, and never trained on."""
CELLS = {
    "seen models, seen networks": Split(),
    "new models": Split(new_models=True),
    "new networks": Split(new_networks=True),
    "new models, new networks": Split(new_models=True, new_networks=True),
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the simulator said of a job."""

    step: list[StepStats]
    step_s: np.ndarray


def simulate_job(job: RandomJob) -> Outcome:
    simulator = simulator_of(job)
    return Outcome(step=observed(simulator, job.running), step_s=seconds(simulator, job))


def seconds(simulator: Simulator, job: RandomJob) -> np.ndarray:
    return np.array([simulator.step_s(plan) for plan in job.plans])


def chunk(number: int) -> list[Outcome]:
    """The outcomes of `CHUNK` jobs, simulated now unless they are kept."""
    path = KEPT / f"{NUM_TRIED}-{number:03d}.npz"
    if not path.exists():
        found = [simulate_job(draw_job(seed, Split(), NUM_TRIED)) for seed in _seeds(number)]
        packed = {f"step{index}": np.frombuffer(_packed(outcome), np.uint8) for index, outcome in enumerate(found)}
        lengths = {f"step_s{index}": outcome.step_s for index, outcome in enumerate(found)}
        _keep(path, **packed, **lengths)
    with np.load(path) as kept:
        return [
            Outcome(step=_unpacked(kept[f"step{index}"].tobytes()), step_s=kept[f"step_s{index}"])
            for index in range(CHUNK)
        ]


def _seeds(number: int) -> range:
    return range(number * CHUNK, (number + 1) * CHUNK)


def _packed(outcome: Outcome) -> bytes:
    return b"".join(entry.pack() for entry in outcome.step)


def _unpacked(content: bytes) -> list[StepStats]:
    starts = range(0, len(content), PACKED_BYTES)
    return [StepStats.unpack(content[start : start + PACKED_BYTES]) for start in starts]


def numbers(job: RandomJob, outcome: Outcome) -> tuple[Window, np.ndarray, np.ndarray, np.ndarray]:
    """The window, its numbers, a row for each candidate tried, and what each is worth."""
    seen = window_of(job, outcome.step)
    window, rows = Grid(job.plans, job.known).numbers(seen)
    return seen, window, rows, np.log(outcome.step_s[0] / outcome.step_s)


def cases(number: int) -> dict[str, np.ndarray]:
    """The numbers of a chunk's windows and candidates, made now unless they are kept: one row per case."""
    path = KEPT / f"{NUM_TRIED}-{number:03d}-features-{features_card()['features']}.npz"
    if not path.exists():
        found = [
            (seed, *numbers(draw_job(seed, Split(), NUM_TRIED), outcome)[1:])
            for seed, outcome in zip(_seeds(number), chunk(number), strict=True)
        ]
        _keep(
            path,
            window=np.concatenate([np.tile(window, (len(rows), 1)) for _, window, rows, _ in found]),
            row=np.concatenate([rows for _, _, rows, _ in found]),
            worth=np.concatenate([worth for *_, worth in found]).astype(np.float32),
            job=np.concatenate([np.full(len(rows), seed) for seed, _, rows, _ in found]),
        )
    with np.load(path) as kept:
        return dict(kept)


def _keep(path: Path, **arrays: np.ndarray) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (unfinished := path.with_suffix(".part")).open("wb") as file:
        np.savez(file, **arrays)
    unfinished.replace(path)


def training_data() -> Batch:
    """All cases; each head weighs each job anew (a bootstrap)."""
    found = []
    for number in range(NUM_JOBS // CHUNK):
        found.append(cases(number))
        say(f"{(number + 1) * CHUNK} of {NUM_JOBS} runs")
    window, row, worth, job = (
        np.concatenate([part[name] for part in found]) for name in ("window", "row", "worth", "job")
    )
    draws = np.random.default_rng(SEED).poisson(1.0, size=(NUM_HEADS, NUM_JOBS))
    return Batch(
        windows=torch.from_numpy(window),
        rows=torch.from_numpy(row),
        measured=torch.from_numpy(worth),
        weights=torch.from_numpy(draws[:, job].astype(np.float32)),
    )


RUNNING = 0
COLD_DRAWS = 10
GRADING = 2
"""Another way to grade is another number: what was kept of the one before is not taken for it."""
OURS = "**the meta-network**"

Judge = Callable[[RandomJob, Window, np.ndarray, np.ndarray], np.ndarray]
"""A score for each candidate, the larger the better."""


def judges(network: MetaNetwork, link_errors: list[float]) -> dict[str, Judge]:
    # One draw of random weights may order plans well by luck: every window asks another.
    colds = [MetaNetwork.cold(seed) for seed in range(COLD_DRAWS)]
    rough = CANDIDATE_FEATURES.index("guess_gain_overlapped")
    return {
        "always what runs": lambda job, _, __, ___: _only(RUNNING, job),
        "always the default": lambda job, _, __, ___: _only(job.default, job),
        "any candidate, at random": lambda job, *_: np.random.default_rng(job.seed).random(len(job.plans)),
        "networks that learned nothing": lambda job, _, window, rows: (
            colds[job.seed % COLD_DRAWS].guess(window, rows).mean
        ),
        "the rough guess alone": lambda _, __, ___, rows: rows[:, rough],
        OURS: lambda _, __, window, rows: network.guess(window, rows).mean,
        "the meta-network, if sure": lambda job, _, window, rows: _if_sure(network, job, window, rows),
        "the simulator, links as a window shows them": lambda job, seen, *_: (
            -seconds(simulator_of(job, shown_links(job, seen)), job)
        ),
        "the simulator, true links off by a window's error": lambda job, *_: (
            -seconds(simulator_of(job, misjudged(job, link_errors)), job)
        ),
        "the simulator, true links": lambda job, *_: -seconds(simulator_of(job), job),
    }


def _only(place: int, job: RandomJob) -> np.ndarray:
    return -np.abs(np.arange(len(job.plans)) - place).clip(0, 1).astype(float)


def _if_sure(network: MetaNetwork, job: RandomJob, window: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return _only(network.guess(window, rows).pick(running=RUNNING, default=job.default), job)


def link_error_of(job: RandomJob, seen: Window) -> float:
    """log(bandwidth as fitted / as it is) of the collective that runs."""
    kind = seen.collective
    return math.log(seen.network.bytes_per_s * seconds_per_byte(kind, job.cluster)) if seen.network else 0.0


def shown_links(job: RandomJob, seen: Window) -> Cluster:
    """All links alike, as fast as makes the collective that runs as fast as it was seen to be."""
    alike = _with_speeds(job.cluster, [1.0] * len(job.cluster.hosts))
    speed = seen.network.bytes_per_s * seconds_per_byte(seen.collective, alike) if seen.network else 1e12
    return _with_speeds(job.cluster, [speed] * len(job.cluster.hosts))


def misjudged(job: RandomJob, link_errors: list[float]) -> Cluster:
    """Every host's link off by the error of some window: most are small, a few are not, and no bell curve is like that."""
    draw = random.Random(f"misjudged {job.seed}")
    times = [math.exp(draw.choice(link_errors)) for _ in job.cluster.hosts]
    hosts = tuple(
        replace(
            host,
            link=replace(
                host.link,
                up_bytes_per_s=host.link.up_bytes_per_s * factor,
                down_bytes_per_s=host.link.down_bytes_per_s * factor,
            ),
        )
        for host, factor in zip(job.cluster.hosts, times, strict=True)
    )
    return replace(job.cluster, hosts=hosts)


def _with_speeds(cluster: Cluster, speeds: list[float]) -> Cluster:
    hosts = tuple(
        replace(host, link=replace(host.link, up_bytes_per_s=speed, down_bytes_per_s=speed))
        for host, speed in zip(cluster.hosts, speeds, strict=True)
    )
    return replace(cluster, hosts=hosts)


def grade(network: MetaNetwork) -> dict[str, dict[str, dict[str, float]]]:
    """Of each cell and each way to choose: medians and means over windows. Cells are kept, as runs are."""
    weights, graded = hashlib.sha256(network.to_bytes()).hexdigest()[:12], {}
    for number, (cell, split) in enumerate(CELLS.items()):
        path = KEPT / f"grades{GRADING}-{weights}-{GRADED_JOBS}-{GRADED_TRIED}-{number}.json"
        if not path.exists():
            write_json(path, grade_cell(network, split))
        graded[cell] = json.loads(path.read_text(encoding="utf-8"))
        say(f"graded: {cell}")
    return graded


def grade_cell(network: MetaNetwork, split: Split) -> dict[str, dict[str, float]]:
    jobs = [draw_job(seed, split, GRADED_TRIED) for seed in range(FIRST_GRADED, FIRST_GRADED + GRADED_JOBS)]
    found = [(job, *numbers(job, simulate_job(job))) for job in jobs]
    link_errors = [link_error_of(job, seen) for job, seen, *_ in found]
    graded = {
        name: _grades([(judge(job, seen, window, rows), worth) for job, seen, window, rows, worth in found])
        for name, judge in judges(network, link_errors).items()
    }
    known = [_coverage(network, window, rows, worth) for _, _, window, rows, worth in found]
    inside, errors = (np.concatenate(part) for part in zip(*known, strict=True))
    graded[OURS] |= {
        "within_one_spread": float(np.mean(inside)),
        "median_error": float(np.median(errors)),
        "link_error_median": float(np.median(np.abs(link_errors))),
        "link_error_rms": float(np.sqrt(np.mean(np.square(link_errors)))),
    }
    return graded


def _grades(scored: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    regrets = [1 - math.exp(worth[scores.argmax()] - worth.max()) for scores, worth in scored]
    orders = [  # who only ever takes one plan has no opinion on the others
        spearman(scores.tolist(), worth.tolist())
        for scores, worth in scored
        if len(set(scores.tolist())) > 2 and np.ptp(worth)
    ]
    return {
        "spearman": float(np.median(orders)) if orders else None,
        "mean_regret": float(np.mean(regrets)),
        "median_regret": float(np.median(regrets)),
        "p90_regret": float(np.percentile(regrets, 90)),
    }


def _coverage(network: MetaNetwork, window: np.ndarray, rows: np.ndarray, worth: np.ndarray) -> tuple[np.ndarray, ...]:
    guess = network.guess(window, rows)
    errors = np.abs(guess.mean - worth)
    return errors <= guess.spread, errors


def card(grades: dict[str, dict[str, dict[str, float]]], num_cases: int) -> dict[str, object]:
    return {
        "what": "log(throughput of a candidate / throughput of the plan that runs), from a window of steps",
        "label": "simulated",
        "features": features_card(),
        "features_version": FEATURES_VERSION,
        "window_features": list(WINDOW_FEATURES),
        "candidate_features": list(CANDIDATE_FEATURES),
        "heads": NUM_HEADS,
        "hidden": HIDDEN,
        "data": {
            "runs": NUM_JOBS,
            "cases": num_cases,
            "held_out_models": list(HELD_OUT_MODELS),
            "held_out_networks": "links of 200-400 Mbit/s and 4-8 Gbit/s, 5 and 7 ranks",
            "graded_windows_per_cell": GRADED_JOBS,
            "graded_candidates_per_window": GRADED_TRIED,
        },
        "training": {"epochs": EPOCHS, "seed": SEED},
        "grades": grades,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "command": "nox -s pretrain",
    }


def table(found: dict[str, object]) -> str:
    """A row per way to choose, a column per cell: Spearman, then mean and 90th percentile of the regret."""
    grades = found["grades"]
    lines = [
        "| chosen by | " + " | ".join(grades) + " |",
        "|---" * (1 + len(grades)) + "|",
    ]
    for name in next(iter(grades.values())):
        cells = [_cell(grades[cell][name]) for cell in grades]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(entry: dict[str, float]) -> str:
    order = f"{entry['spearman']:.2f}; " if entry["spearman"] is not None else ""
    return f"{order}{entry['mean_regret']:.1%} ({entry['p90_regret']:.0%})"


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main(*arguments: str) -> None:
    torch.set_num_threads(1)
    WEIGHTS.mkdir(exist_ok=True)
    if "again" in arguments:
        network = MetaNetwork.shipped()
        num_cases = json.loads((WEIGHTS / CARD).read_text(encoding="utf-8"))["data"]["cases"]
    else:
        data = training_data()
        num_cases = len(data.measured)
        say(f"training on {num_cases} cases")
        network = pretrain(data, seed=SEED, epochs=EPOCHS)
        (WEIGHTS / SHIPPED).write_bytes(network.to_bytes())
    found = card(grade(network), num_cases)
    write_json(WEIGHTS / CARD, found)
    put_between(PAGE, BEGIN, END, table(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
