"""A script's optimizers, applied to one fusion buffer after another as their gradients complete.

An optimizer whose update is per parameter gives the same result in any order. So each buffer has an optimizer of the
same class over the same groups, and steps with the options of the moment when the script called `step()`. The state is
that of the script's optimizer, keyed by parameter, so its `state_dict()` is the same as without this module.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import optimizer as optimizer_module

from autotune.runtime.reduce.fusion_buffer import FusionBuffer
from autotune.runtime.tracked import raw

PER_PARAMETER = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
    optim.Adafactor,
    optim.SparseAdam,
)
"""Optimizers whose update of a parameter depends on its own gradient and state only. Subclasses may do anything."""
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_EVERY_HOOK = (optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks)
_OVERRIDES = ("step", "zero_grad")
_SCALING = ("grad_scale", "found_inf")
"""Attributes that a GradScaler sets on a fused optimizer during one call of `step()`."""


def reason_against(optimizer: optim.Optimizer) -> str:
    """Why this optimizer cannot be applied to one buffer alone; empty if it can."""
    if type(optimizer) not in PER_PARAMETER:
        return f"{type(optimizer).__name__} is not known to update each parameter on its own"
    return ""


def needs_all(optimizer: optim.Optimizer) -> str:
    """Why this call of `step()` needs all gradients at once; empty if it does not."""
    if any(getattr(optimizer, hooks) for hooks in STEP_HOOKS) or any(_EVERY_HOOK):
        return f"{type(optimizer).__name__} has step hooks, which may need all gradients"
    if any(getattr(optimizer, name, None) is not None for name in _SCALING):
        return "the loss is scaled, and a step is skipped where any gradient is not finite"
    return ""


class BufferOptimizer:
    """Updates single buffers as `optimizer` would.

    Threads: `update` runs in any thread, once per buffer and step; the other methods run in the thread of the script
    while no update of their buffers is pending.
    """

    def __init__(self, optimizer: optim.Optimizer, buffers: Sequence[FusionBuffer]) -> None:
        self._optimizer = optimizer
        with raw():
            self._by_buffer = {buffer.index: self._optimizer_of(buffer) for buffer in buffers}

    def options(self) -> list[dict[str, Any]]:
        """The options of every group, as they are now."""
        return [
            {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in self._optimizer.param_groups
        ]

    def refresh(self, buffers: Sequence[FusionBuffer]) -> None:
        """Follow parameters whose storage has been replaced (`p.data = ...`)."""
        with raw():
            for buffer in buffers:
                shadows = self._by_buffer[buffer.index][2]
                pairs = zip(buffer.parameters, shadows, strict=True)
                if any(parameter.data_ptr() != shadow.data_ptr() for parameter, shadow in pairs):
                    self._by_buffer[buffer.index] = self._optimizer_of(buffer)

    @torch.no_grad()
    def update(self, buffer: FusionBuffer, options: Sequence[dict[str, Any]]) -> None:
        """Apply the buffer's gradients."""
        optimizer, places, shadows = self._by_buffer[buffer.index]
        for group, place in zip(optimizer.param_groups, places, strict=True):
            group.update(options[place])
        state, optimizer.state = self._optimizer.state, defaultdict(dict)
        for place, (parameter, shadow) in enumerate(zip(buffer.parameters, shadows, strict=True)):
            if parameter in state:
                optimizer.state[shadow] = state[parameter]
            shadow.grad = buffer.result(place)
        optimizer.step()
        for parameter, shadow in zip(buffer.parameters, shadows, strict=True):
            shadow.grad = None
            if shadow in optimizer.state:
                state[parameter] = optimizer.state[shadow]

    def _optimizer_of(self, buffer: FusionBuffer) -> tuple[optim.Optimizer, list[int], list[Tensor]]:
        """An optimizer over the buffer's parameters, the script's group of each of its groups, and its parameters.

        These parameters are other tensors on the same storage: what the script does to a gradient while another thread
        updates the buffer does not affect the update.
        """
        shadows = [p.detach() for p in buffer.parameters]
        of = {id(p): shadow for p, shadow in zip(buffer.parameters, shadows, strict=True)}
        made = object.__new__(type(self._optimizer))
        made.__dict__ = {key: value for key, value in self._optimizer.__dict__.items() if key not in _OVERRIDES}
        made.__dict__ |= {hooks: OrderedDict() for hooks in STEP_HOOKS}
        params = [[of[id(p)] for p in group["params"] if id(p) in of] for group in self._optimizer.param_groups]
        places = [place for place, chosen in enumerate(params) if chosen]
        made.param_groups = [{**self._optimizer.param_groups[place], "params": params[place]} for place in places]
        return made, places, shadows
