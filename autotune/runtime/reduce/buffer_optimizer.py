"""A script's optimizers, applied unit by unit as gradients land.

An optimizer whose update is per parameter gives the same result in any order, so each unit is stepped by an optimizer of
the same class over the same groups, with the options as they were when the script called `step()`. State is the script's own,
keyed by parameter, so `state_dict()` is what it would have been.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import optimizer as optimizer_module

from autotune.runtime.reduce.fusion_buffer import Unit
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
"""Attributes by which a GradScaler talks to a fused optimizer during one call of `step()`."""


def reason_against(optimizer: optim.Optimizer) -> str:
    """Why this optimizer cannot be applied unit by unit; empty if it can."""
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


class UnitOptimizer:
    """Steps units as `optimizer` would."""

    def __init__(self, optimizer: optim.Optimizer, units: Sequence[Unit]) -> None:
        self._optimizer = optimizer
        with raw():
            self._parts = {unit.index: self._part(unit) for unit in units}

    def options(self) -> list[dict[str, Any]]:
        """Of every group, as they are now."""
        return [
            {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in self._optimizer.param_groups
        ]

    def refresh(self, units: Sequence[Unit]) -> None:
        """Follow parameters whose memory is another since (`p.data = ...`). Nothing of the units is on its way."""
        with raw():
            for unit in units:
                shadows = self._parts[unit.index][2]
                pairs = zip(unit.parameters, shadows, strict=True)
                if any(parameter.data_ptr() != shadow.data_ptr() for parameter, shadow in pairs):
                    self._parts[unit.index] = self._part(unit)

    @torch.no_grad()
    def update(self, unit: Unit, options: Sequence[dict[str, Any]]) -> None:
        """Apply the unit's gradients."""
        part, places, shadows = self._parts[unit.index]
        for group, place in zip(part.param_groups, places, strict=True):
            group.update(options[place])
        state, part.state = self._optimizer.state, defaultdict(dict)
        for place, (parameter, shadow) in enumerate(zip(unit.parameters, shadows, strict=True)):
            if parameter in state:
                part.state[shadow] = state[parameter]
            shadow.grad = unit.result(place)
        part.step()
        for parameter, shadow in zip(unit.parameters, shadows, strict=True):
            shadow.grad = None
            if shadow in part.state:
                state[parameter] = part.state[shadow]

    def _part(self, unit: Unit) -> tuple[optim.Optimizer, list[int], list[Tensor]]:
        """An optimizer over the unit's parameters, which of the user's groups its groups are, and its parameters.

        These are other tensors on the same memory: what the script does to a parameter's gradient while its unit is updated
        by another thread does not reach the update.
        """
        shadows = [p.detach() for p in unit.parameters]
        of = {id(p): shadow for p, shadow in zip(unit.parameters, shadows, strict=True)}
        part = object.__new__(type(self._optimizer))
        part.__dict__ = {key: value for key, value in self._optimizer.__dict__.items() if key not in _OVERRIDES}
        part.__dict__ |= {hooks: OrderedDict() for hooks in STEP_HOOKS}
        shares = [[of[id(p)] for p in group["params"] if id(p) in of] for group in self._optimizer.param_groups]
        places = [place for place, share in enumerate(shares) if share]
        part.param_groups = [{**self._optimizer.param_groups[place], "params": shares[place]} for place in places]
        return part, places, shadows
