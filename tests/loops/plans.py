"""Plans drawn at random, as plain data, and the expression that makes them in a script."""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import pairwise

from tests.loops.blocks import NORMS
from tests.loops.description import Loop, Options

_KINDS = ("scheduled", "scheduled", "scheduled", "bucketed", "ddp")
_DEFAULT_BYTES = 2**22
_NOT_IN_DDP = ("recompute", "rare_branch", "manual_decay", "penalty", "two_forwards", "twice")
"""Parameters used outside the forward pass, twice in a backward pass, or in no pass for a while."""


def draw_split(rng: random.Random, batch: int, ranks: int, *, lowest: int = 1) -> list[int]:
    """Samples of each rank: any that sum to the batch, none below `lowest`."""
    cuts = sorted(rng.sample(range(batch - ranks * lowest + ranks - 1), ranks - 1))
    edges = [-1, *cuts, batch - ranks * lowest + ranks - 1]
    return [right - left - 1 + lowest for left, right in pairwise(edges)]


def draw_plan(rng: random.Random, ranks: int, features: Collection[str]) -> Options:
    """One that a loop with these features can run by, from its start or after a switch."""
    plan = _draw_any(rng, ranks)
    return {**plan, "reducer": "bucketed"} if plan["reducer"] == "ddp" and not _runs_in_ddp(features) else plan


def _runs_in_ddp(features: Collection[str]) -> bool:
    """Torch's DDP raises in loops that it does not support, and gives all ranks the norms' buffers of rank 0."""
    names = set(features)
    has_local_norms = not names.isdisjoint(NORMS) and "sync_norm" not in names
    return names.isdisjoint(_NOT_IN_DDP) and not (has_local_norms and "evaluate" in names)


def _draw_any(rng: random.Random, ranks: int) -> Options:
    """Every reducer, collective and transport; of these, mpi carries no messages from rank to rank, as collectives but ring need."""
    plan: Options = {
        "reducer": rng.choice(_KINDS),
        "transport": "mpi" if rng.random() < 0.2 else "gloo",
        "collective": "ring",
    }
    if plan["reducer"] == "ddp":
        return plan
    if plan["transport"] == "gloo":
        plan["collective"] = rng.choice(("ring", "ring", "shards", "server"))
    if plan["collective"] == "server":
        plan["servers"] = sorted(rng.sample(range(ranks), rng.randint(1, ranks)))
    if plan["collective"] == "shards" and rng.random() < 0.5:
        plan["shares"] = [share / 10 for share in draw_split(rng, 10, ranks)]
    if plan["reducer"] == "bucketed":
        return plan | {"bucket_bytes": rng.choice((128, 1024, 4096, 2**20))}
    plan |= {
        "partition_bytes": rng.choice((64, 256, 1024, 4096, _DEFAULT_BYTES)),
        "credit_bytes": rng.choice((64, 512, 4096, 4 * _DEFAULT_BYTES)),
        "priority": rng.choice(("layer", "layer", "fifo")),
        "crosses_steps": rng.random() < 0.8,
    }
    if plan["transport"] == "gloo" and rng.random() < 0.3:
        plan["factors"] = rng.choice((["head"], ["enter"], ["enter", "head"]))
    return plan


def moved_to(loop: Loop) -> int:
    """The number of ranks of the job that goes on, where it is another one; else 0."""
    if not loop.has("move"):
        return 0
    to = int(loop.options("move")["to"])
    return to if to != loop.ranks else loop.ranks % 3 + 2


def splits_and_plans(loop: Loop) -> dict[int, tuple[list[int], Options]]:
    """By number of ranks: those that the loop runs with, and the same for a job of one rank."""
    alone = {name: value for name, value in loop.plan.items() if name != "shares"}
    if "servers" in alone:
        alone["servers"] = [0]
    found = {1: ([loop.batch], alone), loop.ranks: (list(loop.samples), loop.plan)}
    if to := moved_to(loop):
        rng = random.Random(loop.options("move")["draw"])
        found[to] = (draw_split(rng, loop.batch, to), draw_plan(rng, to, loop.features))
    return found


def plan_expression(plan: Options, batch: str) -> str:
    """Python that makes the plan."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in plan.items()}
    factors = fields.pop("factors", ())
    comm = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    compression = f", compression=CompressionPlan(factors={factors!r})" if factors else ""
    return f"Plan(batch={batch}, comm=CommPlan({comm}){compression})"
