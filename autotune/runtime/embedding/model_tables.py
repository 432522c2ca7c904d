"""All embedding tables of a model on one rank of a job: before each pass they are in the model as pooled bags."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.embedding.bags import bags_of, lookup_of, mean_of, take_out
from autotune.runtime.embedding.cached_tables import CachedTables
from autotune.runtime.embedding.layout import Layout, Table
from autotune.runtime.embedding.rules import Rule
from autotune.runtime.embedding.tables import Passes, ShardedTables
from autotune.workloads.errors import SpecError
from autotune.workloads.plan.embedding import EmbeddingPlan


class ModelTables:
    """Takes the bags out of `model`. One thread makes all calls, the same on all ranks: `begin`; per step `enter` for each of
    its passes, then `push`.
    """

    def __init__(self, model: nn.Module, rule: Rule) -> None:
        self._bags = bags_of(model)
        self._weights = {name: bag.weight.detach() for name, bag in self._bags.items()}
        self._pulled, self._rule = take_out(model, self._bags), rule
        self._sharded: list[ShardedTables] = []
        self._lookups: deque[Passes] = deque()

    def open(self, plan: EmbeddingPlan, samples: Sequence[int], group: dist.ProcessGroup) -> None:
        """Keep this rank's share of the tables, and release the rest."""
        if unknown := [table.name for table in plan.tables if table.name not in self._weights]:
            raise SpecError(
                f"the plan places table {unknown[0]!r} but the model's are {', '.join(sorted(self._weights))}: name one of them"
            )
        for width in sorted({weight.shape[1] for weight in self._weights.values()}):
            weights = {name: weight for name, weight in self._weights.items() if weight.shape[1] == width}
            tables = [Table(name=name, num_rows=len(weight), width=width) for name, weight in weights.items()]
            layout = Layout(tables, plan, plan.used_servers(samples), group.rank(), len(samples))
            self._sharded.append(self._tables(plan, layout, weights, group))
        self._weights = {}
        for bag in self._bags.values():
            del bag.weight

    @property
    def ahead(self) -> int:
        """The steps, from the present one on, whose lookups must be known."""
        return max(tables.ahead for tables in self._sharded)

    def begin(self, steps: Sequence[Sequence[Any]]) -> None:
        """Pull the rows of the first step. `steps`: what each pass of the first `ahead` steps looks up, see `Workload.lookups`."""
        self._lookups.extend(self._checked(passes) for passes in steps)
        for tables in self._sharded:
            tables.begin(list(self._lookups)[: tables.ahead])

    def enter(self, number: int, device: torch.device) -> None:
        """Pool the bags of a pass for the model, which is on `device`."""
        lookups = self._lookups[0][number]
        for tables in self._sharded:
            for name, pooled in zip(tables.layout.tables, tables.pooled(number), strict=True):
                done = mean_of(pooled, lookups[name]) if self._bags[name].mode == "mean" else pooled
                self._pulled[name].pooled = done.to(device)

    def push(self, later: Sequence[Any], scale: float = 1.0) -> None:
        """Push the gradients of a step, times `scale`, and pull the rows of the next one. `later`: the lookups of the
        step that is `ahead` steps later.
        """
        self._lookups.popleft()
        self._lookups.append(self._checked(later))
        for tables in self._sharded:
            tables.push(self._lookups[tables.ahead - 1], scale)

    @property
    def num_bytes(self) -> int:
        """Of this rank's rows and their optimizer state."""
        return sum(tables.num_bytes for tables in self._sharded)

    @property
    def sent_bytes(self) -> int:
        """By this rank to other ranks, since the start."""
        return sum(tables.exchange.sent_bytes for tables in self._sharded)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Write the whole tables into a model with bags; a collective call."""
        bags = bags_of(model)

        def take(name: str, rows: slice, weights: Tensor) -> None:
            bags[name].weight[rows] = weights.to(bags[name].weight.device)

        for tables in self._sharded:
            tables.gather(take)

    def close(self) -> None:
        """Release the group."""
        for tables in self._sharded:
            tables.close()

    def _tables(
        self, plan: EmbeddingPlan, layout: Layout, weights: Mapping[str, Tensor], group: dist.ProcessGroup
    ) -> ShardedTables:
        if not plan.cache_rows:
            return ShardedTables(layout, weights, self._rule, group)
        every = sum(len(weight) for weight in self._weights.values())
        own = plan.cache_rows * sum(layout.num_rows) // every
        return CachedTables(layout, weights, self._rule, group, cache_rows=own, look_ahead=plan.look_ahead)

    def _checked(self, passes: Sequence[Mapping[str, tuple[Tensor, Tensor | None]]]) -> Passes:
        found = []
        for one in passes:
            if set(one) != set(self._bags):
                raise SpecError(
                    f"the workload's lookups name {', '.join(sorted(one))} but the model's embedding bags are "
                    f"{', '.join(sorted(self._bags))}: name each of them"
                )
            found.append({name: lookup_of(arguments, self._bags[name]) for name, arguments in one.items()})
        return found
