"""Data-parallel training of a model whose embedding tables are on servers (`autotune.runtime.embedding`).

Batches are read ahead, because the servers send the rows of the next step when they have applied the present one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autotune.runtime.data.micro_batches import Pass
from autotune.runtime.device import Stamp
from autotune.runtime.embedding.model_tables import ModelTables
from autotune.runtime.embedding.rules import rule_of
from autotune.runtime.train.memory import check_memory
from autotune.runtime.train.step import Step
from autotune.runtime.train.trainer import RankContext, Trainer
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan
from autotune.workloads.workload import Workload, loop_of


class EmbeddingTrainer(Trainer):
    """One rank: a worker, a server, or both. `table_group`: of its own, because rows are exchanged beside gradients."""

    def __init__(  # noqa: PLR0913 - what a trainer is made of
        self,
        workload: Workload,
        plan: Plan,
        group: dist.ProcessGroup,
        rank_context: RankContext,
        *,
        seed: int,
        table_group: dist.ProcessGroup,
        norm_group: dist.ProcessGroup | None = None,
    ) -> None:
        check_embedding(workload)
        assert plan.embedding is not None
        self._whole, without = workload, _WithoutTables(workload)
        super().__init__(cast("Workload", without), plan, group, rank_context, seed=seed, norm_group=norm_group)
        self._tables = without.tables
        self._tables.open(plan.embedding, plan.batch.samples, table_group)
        self._ahead: deque[list[Pass]] = deque()
        self._num_passes = 0

    def metered_step(self) -> Step:
        """The rows of a server are on its device as well."""
        step = super().metered_step()
        self.peak_memory_bytes += self._tables.num_bytes
        check_memory(self.peak_memory_bytes, self.rank_context.device, self.rank_context.rank, step.num_samples)
        return step

    def whole_model(self) -> nn.Module:
        """The model with its present tables; a collective call."""
        self.flush()
        model = self._whole.model().to(self.rank_context.torch_device)
        model.load_state_dict(self.model.state_dict(), strict=False)
        self._tables.copy_to(model)
        return model

    def close(self, error: BaseException | None = None) -> None:
        """Release the groups."""
        self._tables.close()
        super().close(error)

    def _take(self, step: int) -> list[Pass]:
        is_first = not self._ahead
        while len(self._ahead) <= self._tables.ahead:
            self._ahead.append(super()._take(step + len(self._ahead)))
        if is_first:
            self._tables.begin([self._lookups(self._ahead[number]) for number in range(self._tables.ahead)])
        self._num_passes = 0
        return self._ahead.popleft()

    def _gradients(self, passes: Sequence[Pass]) -> tuple[list[tuple[Stamp, Stamp]], list[torch.Tensor]]:
        done = super()._gradients(passes)
        with self.ranges.phase("wait"):
            self._tables.push(self._lookups(self._ahead[-1]), 1.0 / self._reducer.loss_scale)
        return done

    def _forward(self, batch: Any) -> torch.Tensor:
        self._tables.enter(self._num_passes, self.rank_context.torch_device)
        self._num_passes += 1
        return super()._forward(batch)

    def _lookups(self, passes: Sequence[Pass]) -> list[Any]:
        """What the passes look up. One of weight 0 looks up nothing: its rows must not count as touched."""
        found = [(one, cast("Any", self._whole).lookups(one.batch)) for one in passes if one.batch is not None]
        return [
            lookups if one.weight > 0 else {name: _empty(*bag) for name, bag in lookups.items()}
            for one, lookups in found
        ]


def check_embedding(workload: Workload) -> None:
    """Refuse a workload whose tables cannot be on servers."""
    if not hasattr(workload, "lookups"):
        raise SpecError(
            f"the plan has embedding servers but workload {workload.name!r} does not state its lookups: see docs/embedding.md, or "
            "use a plan without them"
        )
    if loop_of(workload).clip_norm is not None:
        raise SpecError(
            f"workload {workload.name!r} states clip_norm, the norm of all gradients, but no rank has those of all tables: use a "
            "plan without embedding servers"
        )


class _WithoutTables:
    """The workload whose model has no tables: they are in `tables`, once the model is built."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def model(self) -> nn.Module:
        model = self._workload.model()
        bags = [module.weight for module in model.modules() if isinstance(module, nn.EmbeddingBag)]
        rule = rule_of(self._workload.optimizer(model), bags) if bags else None
        self.tables = ModelTables(model, cast("Any", rule))
        return model

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self._workload.optimizer(model)


def _empty(ids: torch.Tensor, offsets: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """As many bags, without ids."""
    return ids.new_zeros(0), ids.new_zeros(len(ids if offsets is None else offsets))
