"""The reducer of a training script, by its plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.local_sgd import AveragingReducer
from autotune.runtime.reduce.scheduled import ReducerSettings
from autotune.runtime.train.script_ddp import ScriptDdp
from autotune.runtime.waits import Waits
from autotune.workloads.plan import Plan, ReducerKind


class ScriptReducer(Protocol):
    """Made by all ranks together. A backward pass outside `no_sync` exchanges gradients, a step applies them."""

    weight: float | None
    """The weight of this rank's gradients in the following backward passes."""
    batch_number: int
    num_loads: int
    """Batches and checkpoints that the script has read, to detect a rank that is at another place."""
    stalls: Waits
    """When forward passes have waited for parameters since the last call of `sent`."""
    barrier_reason: str
    """Why steps do not overlap; empty where they do."""

    def take(self, weight: float, source: object = None) -> None:
        """Set the weight of the next batch of a data set, which the script uses now."""

    @property
    def is_between_steps(self) -> bool:
        """Whether all accumulated gradients have been exchanged."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate."""

    def flush(self) -> None:
        """Wait until every parameter is up to date."""

    def record(self, *, on: bool) -> None:
        """Record the following collectives, or stop."""

    def sent(self) -> Sent:
        """The collectives since the last call."""

    def owed(self) -> dict[str, Tensor]:
        """The residuals of lossy codecs over all ranks, by parameter; called by all ranks together."""

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Add these residuals to the following gradients; called by all ranks together."""

    def detach(self, error: BaseException | None = None) -> None:
        """Release models, optimizers and group; `error`: why, if this rank has failed."""


class ScriptAveraging(AveragingReducer):
    """Local SGD: models are averaged every few steps of the first optimizer."""

    barrier_reason = "reducer 'averaged' exchanges models, not gradients"
    is_between_steps = True
    weight: float | None = None
    batch_number = num_loads = 0

    def take(self, weight: float, source: object = None) -> None:  # noqa: ARG002 - models are weighted, not batches
        self.weight = weight

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()


def make_script_reducer(
    model: nn.Module, optimizers: Sequence[Optimizer], plan: Plan, group: dist.ProcessGroup, setting: ReducerSettings
) -> ScriptReducer:
    """For a model, or `Models`, whose values are the same on all ranks."""
    if plan.comm.reducer == ReducerKind.DDP:
        return ScriptDdp(model, optimizers, plan, group, setting)
    if plan.comm.reducer == ReducerKind.AVERAGED:
        return ScriptAveraging(model, optimizers[0], plan, group)
    return CrossStepReducer(model, optimizers, plan, group, setting)
