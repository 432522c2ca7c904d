"""Local SGD: every rank trains on its own samples, and every few steps all models are replaced by their weighted mean.

Parameters are sent once in `average_every` steps instead of gradients in every step (Stich, "Local SGD Converges Fast
and Communicates Little", 2019). The weight of a rank's model is its share of the samples, so ranks of different speeds
count by their samples. The result differs from synchronous SGD, so such a plan must pass the quality guard. Optimizer
state is not averaged, as is usual.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.device import handle_of
from autotune.runtime.reduce.bucketed import RecordingGroup, Sent
from autotune.runtime.waits import Waits
from autotune.workloads.plan import Plan


class AveragingReducer(RecordingGroup):
    """Exchanges no gradients; every K-th step of the optimizer ends with the mean of all models."""

    needs_backward = waits_in_backward = False
    buffer_bytes = 0

    def __init__(self, model: nn.Module, optimizer: Optimizer, plan: Plan, group: dist.ProcessGroup) -> None:
        self.model, self._group, self.stalls = model, group, Waits()
        samples = plan.batch.samples
        self._weight = samples[group.rank()] / sum(samples)
        # Callers weight a loss by b_i/B, for sums of gradients; this factor makes it the rank's own mean again.
        self.loss_scale = 1 / self._weight if self._weight else 0.0
        self._every, self._num_steps = plan.comm.average_every, 0
        self._handle = optimizer.register_step_post_hook(lambda *_: self._after_step())

    def begin(self) -> None:
        self.model.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        """No pass exchanges anything."""
        return nullcontext()

    def finish(self) -> None:
        """Gradients stay on their rank."""

    def sent(self) -> Sent:
        """What was exchanged since the last call, and how long the step that averages has waited for it."""
        return replace(super().sent(), stalled_s=sum(end_s - begin_s for begin_s, end_s in self.stalls.take()))

    def flush(self) -> None:
        """The step that averages waits for the mean."""

    def owed(self) -> dict[str, Tensor]:
        """No codec is used."""
        return {}

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Discard it: no gradients are sent."""

    def detach(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - peers notice it by the group
        self._handle.remove()
        del self._group

    def _after_step(self) -> None:
        self._num_steps += 1
        if self._num_steps % self._every == 0:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        alike: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            if tensor.is_floating_point():
                alike[tensor.dtype].append(tensor.detach())
        for tensors in alike.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) * self._weight
            device = handle_of(flat)
            begun = device.stamp()
            self._group.allreduce([flat], dist.AllreduceOptions()).wait()
            self.stalls.add(begun, device.stamp())
            for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(mean.view_as(tensor))
