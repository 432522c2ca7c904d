"""Steps of embedding tables on servers against a plain deduplicating all-to-all, interleaved, on real ranks.

    python -m tests.benchmarks.embedding            measure and keep both parts
    python -m tests.benchmarks.embedding cache      a part: `speed` or `cache`
    python -m tests.benchmarks.embedding again      print what is kept

Two ranks (processes joined by gloo), 8 tables of 100,000 rows of 32 numbers, 1,024 samples per rank, ids from a Zipf
distribution with exponent 1.05, SGD; both compute the same tables. Each round times some steps of either side. The second part
simulates which rows workers keep, on the same lookups, beside a cache with perfect foresight.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.results.judge.stats import speedup
from autotune.results.store.environment import describe_environment
from autotune.runtime.embedding.model_tables import ModelTables
from autotune.runtime.embedding.rules import SgdRule
from autotune.workloads.models.dlrm import zipf_ids
from autotune.workloads.plan.embedding import EmbeddingPlan
from tests.benchmarks.plain_all_to_all import PlainAllToAll
from tests.benchmarks.published_table import put_between
from tests.benchmarks.row_links import drawn_stream, kept_links, links, most_links
from tests.gloo_ranks import gloo_group

KEPT, PAGE = Path("results") / "published" / "embedding", Path("docs") / "embedding.md"
RANKS, TABLES, ROWS, WIDTH, SAMPLES = 2, 8, 100_000, 32, 1024
BAGS = (1, 4)
"""Ids per bag; the bar is for bags of one."""
BATCHES, ROUNDS, STEPS, WARMUP = 32, 30, 20, 10
LR = 0.01
CACHE_STEPS, LOOK_AHEADS = 300, (8, 32, 128)

Batch = tuple[list[Tensor], list[Tensor]]


def batches(rank: int, bag: int) -> list[Batch]:
    """Ids and offsets per table; the ranks of the ids are drawn once per table."""
    offsets = torch.arange(SAMPLES) * bag
    columns = [
        zipf_ids(ROWS, (RANKS, BATCHES, SAMPLES * bag), torch.Generator().manual_seed(table))[rank]
        for table in range(TABLES)
    ]
    return [([column[number] for column in columns], [offsets] * TABLES) for number in range(BATCHES)]


def initial() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(ROWS, WIDTH, generator=generator) / 10 for _ in range(TABLES)]


def loss(pooled: Sequence[Tensor]) -> Tensor:
    """Of the bags of each table."""
    return torch.stack([(one * torch.linspace(-1, 1, WIDTH)).sum() for one in pooled]).sum()


class Ours:
    """Tables on servers, which are the workers."""

    def __init__(self, group: Any, data: Sequence[Batch]) -> None:
        model = nn.ModuleList(nn.EmbeddingBag.from_pretrained(one, mode="sum") for one in initial())
        self._bags, self._data, self._step = model, data, 0
        self.tables = ModelTables(model, SgdRule(lr=LR))
        self.tables.open(EmbeddingPlan(), (SAMPLES,) * RANKS, group)
        self.tables.begin([self._lookups(step) for step in range(self.tables.ahead)])

    def step(self) -> None:
        self.tables.enter(0, torch.device("cpu"))
        loss([bag() for bag in self._bags]).backward()
        self.tables.push(self._lookups(self._step + self.tables.ahead))
        self._step += 1

    def _lookups(self, step: int) -> list[dict[str, Any]]:
        ids, offsets = self._data[step % BATCHES]
        return [{str(table): (ids[table], offsets[table]) for table in range(TABLES)}]


class Plain:
    def __init__(self, group: Any, data: Sequence[Batch]) -> None:
        self.exchange, self._data, self._step = PlainAllToAll(group, initial(), LR), data, 0

    def step(self) -> None:
        self.exchange.step(*self._data[self._step % BATCHES], loss)
        self._step += 1


def run(rank: int, bag: int, folder: str) -> None:
    """One rank; rank 0 writes the mean steps of each round."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    group = gloo_group(store, rank, RANKS)
    data = batches(rank, bag)
    sides: dict[str, Any] = {"plain": Plain(group, data), "ours": Ours(group, data)}
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-1, ROUNDS):
        for name in sides if number % 2 else reversed(sides):
            group.barrier().wait()
            begun_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(WARMUP if number < 0 else STEPS):
                sides[name].step()
            if number >= 0:
                rounds[name].append((time.perf_counter() - begun_s) / STEPS)
                cpu[name].append((time.process_time() - cpu_s) / STEPS)
    sent_bytes = sides["ours"].tables.sent_bytes
    difference = agreement(sides["plain"], sides["ours"], rank)
    if rank == 0:
        kept = {
            "rounds": rounds,
            "cpu": cpu,
            "difference": difference,
            "sent_bytes_per_step": sent_bytes / sides["ours"]._step,
        }
        Path(folder, "rounds.json").write_text(json.dumps(kept))


def agreement(plain: Plain, ours: Ours, rank: int) -> float:
    """The largest difference of the rows of this rank, after equally many steps."""
    whole = nn.ModuleList(nn.EmbeddingBag(ROWS, WIDTH, mode="sum") for _ in range(TABLES))
    ours.tables.copy_to(whole)
    found = torch.cat([table.weight.detach() for table in whole])[rank::RANKS]
    return float((found - plain.exchange.rows()).abs().max())


def measure(bag: int) -> dict[str, Any]:
    """A row of the table."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run, args=(rank, bag, folder)) for rank in range(RANKS)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        found = json.loads(Path(folder, "rounds.json").read_text())
    rounds = found["rounds"]
    ratio = speedup(rounds["plain"], rounds["ours"])
    return {
        "bag": bag,
        "median_ms": {name: round(1000 * median(steps), 2) for name, steps in rounds.items()},
        "cpu_ms": {name: round(1000 * median(steps), 2) for name, steps in found["cpu"].items()},
        "ratio": [round(one, 3) for one in (ratio.value, ratio.low, ratio.high)],
        "largest_difference": found["difference"],
        "sent_bytes_per_step": round(found["sent_bytes_per_step"]),
        "rounds_s": rounds,
    }


def cached(num_workers: int, share: float) -> dict[str, Any]:
    """A row of the second table: of all rows that workers need, the part that is not sent."""
    stream = drawn_stream(num_workers, CACHE_STEPS, tables=TABLES, rows=ROWS, samples=SAMPLES)
    num_rows, cache_rows = TABLES * ROWS, int(share * TABLES * ROWS)
    needed = sum(len(rows) for of_workers in stream for rows in of_workers)
    best = sum(most_links(one, cache_rows) for one in links(stream))
    kept = {ahead: kept_links(stream, num_rows, cache_rows, ahead) for ahead in LOOK_AHEADS}
    return {
        "workers": num_workers,
        "cache_share": share,
        "rows_needed": needed,
        "kept_with_perfect_foresight": best,
        "kept": kept,
    }


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "speed": lambda: [measure(bag) for bag in BAGS],
    "cache": lambda: [cached(workers, share) for workers in (1, 2) for share in (0.01, 0.05, 0.2)],
}


def make(name: str) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = {"command": f"nox -s embedding -- {name}", "environment": describe_environment()}
    (KEPT / f"{name}.json").write_text(json.dumps(facts | {"rows": PARTS[name]()}, indent=1) + "\n")


def kept_rows(name: str) -> list[dict[str, Any]]:
    path = KEPT / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return found


def cache_table(rows: Sequence[dict[str, Any]]) -> str:
    """Shares of the rows that workers need which are not sent; in brackets, of what perfect foresight saves."""
    aheads = list(rows[0]["kept"])
    lines = [
        "| workers | cache | perfect foresight | " + " | ".join(f"{ahead} steps ahead" for ahead in aheads) + " |",
        "|---|---|---|" + "---|" * len(aheads),
    ]
    for row in rows:
        best, needed = row["kept_with_perfect_foresight"], row["rows_needed"]
        ours = " | ".join(f"{row['kept'][ahead] / needed:.1%} ({row['kept'][ahead] / best:.0%})" for ahead in aheads)
        lines.append(f"| {row['workers']} | {row['cache_share']:.0%} of the rows | {best / needed:.1%} | {ours} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    for name in [part for part in arguments if part in PARTS] or ([] if arguments == ["again"] else list(PARTS)):
        make(name)
    for row in kept_rows("speed"):
        value, low, high = row["ratio"]
        print(
            f"bags of {row['bag']}: plain {row['median_ms']['plain']} ms, ours {row['median_ms']['ours']} ms, "
            f"{value:.2f}x ({low:.2f}-{high:.2f}); CPU time {row['cpu_ms']['plain']} and {row['cpu_ms']['ours']} ms; tables differ by {row['largest_difference']:.1e} at most"
        )
    put_between(PAGE, "<!-- cache -->", "<!-- /cache -->", cache_table(kept_rows("cache")))


if __name__ == "__main__":
    main(sys.argv[1:])
