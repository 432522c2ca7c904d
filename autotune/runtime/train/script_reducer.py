"""What exchanges gradients under a training script: the reducer that its plan names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.reduce.cross_step import Engine
from autotune.runtime.reduce.local_sgd import AveragingReducer
from autotune.runtime.reduce.scheduled import Setting
from autotune.runtime.train.script_ddp import ScriptDdp
from autotune.workloads.plan import Plan


class ScriptReducer(Protocol):
    """Made by all ranks together. A backward pass outside `no_sync` exchanges gradients, a step applies them."""

    weight: float | None
    """What this rank's gradients count in the backward passes that follow."""
    batch_number: int
    num_loads: int
    """What the script has read so far, to tell a rank that is at another place."""
    stalled_s: float
    barrier_reason: str
    """Why steps do not overlap; empty where they do."""

    def take(self, weight: float, source: object = None) -> None:
        """The next batch of a data set, to be used now."""

    @property
    def is_between_steps(self) -> bool:
        """Whether no gradients have been accumulated that were not exchanged."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate."""

    def flush(self) -> None:
        """Wait until every parameter is up to date."""

    def record(self, *, on: bool) -> None:
        """Note every exchange from here on."""

    def sent(self) -> Sent:
        """What was exchanged since the last call."""

    def owed(self) -> dict[str, Tensor]:
        """What lossy codecs have left out so far, over all ranks, by parameter; called by all ranks together."""

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Add this to the gradients that follow; called by all ranks together."""

    def detach(self, error: BaseException | None = None) -> None:
        """Let go of models, optimizers and group; `error`: why, if this rank has failed."""


class ScriptAveraging(AveragingReducer):
    """Every rank trains on its own; models are averaged every few steps of the first optimizer."""

    barrier_reason = "reducer 'averaged' exchanges models, not gradients"
    is_between_steps = True
    weight: float | None = None
    batch_number = num_loads = 0

    def take(self, weight: float, source: object = None) -> None:  # noqa: ARG002 - models are weighted, not batches
        self.weight = weight

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()


def make_script_reducer(
    model: nn.Module, optimizers: Sequence[Optimizer], plan: Plan, group: dist.ProcessGroup, setting: Setting
) -> ScriptReducer:
    """Of a model, or `Models`, whose values are the same on all ranks."""
    if plan.comm.reducer == "ddp":
        return ScriptDdp(model, optimizers, plan, group, setting)
    if plan.comm.reducer == "averaged":
        return ScriptAveraging(model, optimizers[0], plan, group)
    return Engine(model, optimizers, plan, group, setting)
