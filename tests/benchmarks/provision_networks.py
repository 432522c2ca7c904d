"""Networks like those that HeterPS trains, and drawn ones, as problems of provisioning. The networks are our definition.

Times follow from counted work on stated speeds: a lookup reads rows from memory (on an accelerator: from its host, over PCIe), a dense layer
multiplies matrices, forward and backward. Prices are examples, in no currency. `python -m tests.benchmarks.provision_networks` writes the files
in `networks`, which `autotune provision` reads.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.provision.exact import cheapest
from autotune.provision.problem import Layer, Problem, ResourceType

FOLDER = Path(__file__).parent / "networks"
_FLOAT = 4
_PASSES = 3
"""Forward, and a backward pass of twice its work."""
_LAUNCH_SHARE_S = 2e-8
"""Of starting a layer, per example, on an accelerator: a launch of 20 us for a batch of 1,000."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A type of resource, by its speeds."""

    name: str
    price_per_hour: float
    flops_per_s: float
    rows_bytes_per_s: float
    """At which rows of a table arrive that is too large for an accelerator."""
    link_bytes_per_s: float
    alpha: float
    beta: float
    launch_s: float = 0.0


KINDS = (
    Kind(
        name="cpu",
        price_per_hour=0.7,
        flops_per_s=4e11,
        rows_bytes_per_s=2e10,
        link_bytes_per_s=1.25e9,
        alpha=0.97,
        beta=0.95,
    ),
    Kind(
        name="small-gpu",
        price_per_hour=1.2,
        flops_per_s=6e12,
        rows_bytes_per_s=4e9,
        link_bytes_per_s=1.25e9,
        alpha=0.93,
        beta=0.9,
        launch_s=_LAUNCH_SHARE_S,
    ),
    Kind(
        name="large-gpu",
        price_per_hour=4.0,
        flops_per_s=4e13,
        rows_bytes_per_s=1e10,
        link_bytes_per_s=1.25e10,
        alpha=0.92,
        beta=0.9,
        launch_s=_LAUNCH_SHARE_S,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A layer as work per example."""

    name: str
    kind: str
    flops: float = 0.0
    rows_bytes: float = 0.0
    output_bytes: float = 0.0
    weight_bytes: float = 0.0


def lookup(name: str, *, rows: int, width: int, table_rows: float) -> Work:
    """Rows are read, their gradients written, and sums of them handed on."""
    read = rows * width * _FLOAT
    return Work(
        name=name, kind="embedding", rows_bytes=2 * read, output_bytes=read, weight_bytes=table_rows * width * _FLOAT
    )


def dense(name: str, inputs: int, outputs: int) -> Work:
    """A matrix product, forward and backward."""
    work = _PASSES * 2.0 * inputs * outputs
    return Work(
        name=name, kind="dense", flops=work, output_bytes=outputs * _FLOAT, weight_bytes=inputs * outputs * _FLOAT
    )


def ctr16() -> list[Work]:
    """A CTR model of 16 layers: three lookups, pooling, an interaction, eleven dense layers."""
    layers = [lookup(f"embedding{at}", rows=rows, width=64, table_rows=1e8) for at, rows in enumerate((120, 80, 40))]
    layers.append(Work(name="pooling", kind="sum", flops=3 * 240 * 64, output_bytes=26 * 64 * _FLOAT))
    layers.append(
        Work(name="interaction", kind="product", flops=_PASSES * 2 * 26 * 26 * 64, output_bytes=1024 * _FLOAT)
    )
    sizes = (1024, 4096, 4096, 2048, 2048, 1024, 1024, 512, 512, 256, 128, 1)
    return layers + [dense(f"fc{at}", *pair) for at, pair in enumerate(itertools.pairwise(sizes))]


def two_tower() -> list[Work]:
    """A matching model: the user's tower, then the item's, then their product."""
    layers: list[Work] = []
    for side, rows, table in (("user", 200, 2e8), ("item", 60, 5e7)):
        layers.append(lookup(f"{side}-embedding", rows=rows, width=128, table_rows=table))
        sizes = (1024, 2048, 1024, 512, 256)
        layers += [dense(f"{side}-fc{at}", *pair) for at, pair in enumerate(itertools.pairwise(sizes))]
    return [*layers, Work(name="product", kind="product", flops=_PASSES * 2 * 256 * 64, output_bytes=_FLOAT)]


def two_embeddings() -> list[Work]:
    """Two large tables, of which one is read much more, and a tower."""
    layers = [
        lookup("history", rows=500, width=64, table_rows=4e8),
        lookup("profile", rows=30, width=64, table_rows=1e8),
    ]
    sizes = (2048, 4096, 2048, 1024, 512, 1)
    return layers + [dense(f"fc{at}", *pair) for at, pair in enumerate(itertools.pairwise(sizes))]


NETWORKS = {"ctr16": ctr16, "two-tower": two_tower, "two-embeddings": two_embeddings}
EXAMPLES, FLOOR = 1e9, 200_000.0


def network(name: str) -> dict[str, Any]:
    """A network as the file that `autotune provision` reads."""
    layers = []
    for work in NETWORKS[name]():
        compute = {
            one.name: work.flops / one.flops_per_s + work.rows_bytes / one.rows_bytes_per_s + one.launch_s
            for one in KINDS
        }
        transfer = {one.name: 2 * work.output_bytes / one.link_bytes_per_s for one in KINDS}
        sizes = {"kind": work.kind, "weight_bytes": work.weight_bytes, "input_bytes": work.rows_bytes}
        layers.append({"name": work.name, "compute_s": compute, "transfer_s": transfer} | sizes)
    return {
        "types": [{"name": one.name, "price_per_hour": one.price_per_hour} for one in KINDS],
        "layers": layers,
        "alpha": {one.name: one.alpha for one in KINDS},
        "beta": {one.name: one.beta for one in KINDS},
        "examples": EXAMPLES,
        "min_throughput": FLOOR,
    }


def drawn(seed: int, *, limited: bool) -> Problem:
    """A network of lookups and dense layers on a CPU type and one to three accelerators; with limits, one that can be met."""
    rng = random.Random(seed)
    while True:
        problem = _draw(rng, limited=limited)
        if cheapest(problem).assignment is not None:
            return problem


def _draw(rng: random.Random, *, limited: bool) -> Problem:
    speeds = [1.0] + [rng.uniform(8, 60) for _ in range(rng.randint(1, 3))]
    price = round(rng.uniform(0.02, 0.1), 3)
    types = [
        ResourceType(
            name=f"gpu{at}" if at else "cpu",
            price_per_hour=round(price * speed * rng.uniform(0.2, 0.9), 3) if at else price,
            alpha=round(rng.uniform(0.85, 0.99), 3),
            beta=round(rng.uniform(0.8, 0.99), 3),
            limit=None if not limited else rng.randint(2, 16) if at else rng.randint(50, 300),
        )
        for at, speed in enumerate(speeds)
    ]
    count = rng.randint(6, 16)
    lookups = rng.randint(1, max(1, count // 4))
    layers = [_layer(rng, at, lookups, speeds) for at in range(count)]
    quickest = min(sum(layer.compute_s[kind] for layer in layers) for kind in range(len(types)))
    floor = rng.uniform(2, 20) / quickest
    return Problem(types=tuple(types), layers=tuple(layers), examples=1e9, min_throughput=floor)


def _layer(rng: random.Random, at: int, lookups: int, speeds: list[float]) -> Layer:
    if at < lookups:
        read = rng.uniform(1e-4, 1e-3)
        compute = [read * (rng.uniform(0.6, 1.5) if kind else 1.0) for kind in range(len(speeds))]
        sent = rng.uniform(1e-5, 2e-4)
    else:
        work = rng.uniform(1e-4, 3e-3) * 0.8 ** (at - lookups)
        compute = [work / speed * rng.uniform(0.8, 1.2) + 2e-6 * bool(kind) for kind, speed in enumerate(speeds)]
        sent = rng.uniform(1e-6, 1e-4)
    transfer = tuple(sent * (1 + 0.2 * kind) for kind in range(len(speeds)))
    kind = "embedding" if at < lookups else "dense"
    return Layer(name=f"{kind}{at}", kind=kind, compute_s=tuple(compute), transfer_s=transfer)


if __name__ == "__main__":
    for name in NETWORKS:
        (FOLDER / f"{name}.json").write_text(json.dumps(network(name), indent=1) + "\n")
