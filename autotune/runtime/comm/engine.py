"""Steps that cross: the next one begins before the last one's gradients have arrived.

A call of `optimizer.step()` only notes the options of that moment: each unit is updated when it has landed, and the next
forward pass waits, module by module, for the units that it is about to read. The first step never crosses: it shows which
module reads which parameter first, and whether somebody touches gradients between backward and `step()` (clipping, loss
scaling), who needs all of them at once. Then, and for optimizers that do more than update each parameter on its own, every
step ends as without crossing, and `barrier_reason` says why.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autotune.runtime.comm.exchange import Exchange, Setting
from autotune.runtime.comm.first_reads import FirstReads, waiting_modules
from autotune.runtime.comm.unit import Stage, Unit
from autotune.runtime.comm.unit_optimizer import UnitOptimizers, reason_against
from autotune.runtime.reducer import Sent
from workloads.plan import Plan


class Engine(Exchange):
    """An exchange whose steps cross, if the plan says so and nothing speaks against it."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, plan: Plan, group: dist.ProcessGroup, setting: Setting
    ) -> None:
        self.barrier_reason = "" if plan.comm.crosses_steps else "the plan says so"
        """Why steps do not cross; empty while they do, or may."""
        self._reads: FirstReads | None = None
        self._parts: UnitOptimizers | None = None
        self._replaced: dict[str, Any] = {}
        self.stalled_s = 0.0
        self._stalls: list[tuple[float, float]] = []
        against = None if self.barrier_reason else reason_against(optimizer, list(model.parameters()))
        super().__init__(model, optimizer, plan, group, setting)
        if against is not None:
            self.barrier_reason = against
        elif not self.barrier_reason:
            self._reads = FirstReads(model)

    def finish(self) -> None:
        """No more gradients come in this step; unless steps cross, wait until all have landed."""
        if self._crosses:
            self._offer_all()
            return
        is_first_time = self._finished != self._pass
        super().finish()
        if self._reads is not None and is_first_time:
            for unit in self.units:
                unit.remember()

    @property
    def is_between_steps(self) -> bool:
        """Whether `optimizer.step()` has used all gradients there are: none would be lost if this engine went away."""
        if not self._crosses:
            landed = self._finished == self._pass
        else:
            landed = any(unit.stage is not Stage.FILLING and unit.options is None for unit in self.units)
        return not landed and not any(unit.is_filled for unit in self.units)

    def settle(self) -> None:
        """Wait until every parameter is up to date. No forward pass waits here, so this is no part of `stalled_s`."""
        self._wait([unit for unit in self.units if unit.options is not None], Stage.FILLING)

    def sent(self) -> Sent:
        """What has landed since the last call, while recording, and how long forward passes have waited."""
        stalled_s, self.stalled_s = self.stalled_s, 0.0
        stalls, self._stalls = tuple(self._stalls), []
        return replace(super().sent(), stalls=stalls, stalled_s=stalled_s)

    def detach(self, error: BaseException | None = None) -> None:
        try:
            if error is None and self._error is None:
                self.settle()
        finally:
            if self._reads is not None:
                self._reads.stop()
            kept = {name: value for name, value in self._optimizer.__dict__.items() if name not in self._replaced}
            self._optimizer.__dict__ = kept | {name: old for name, old in self._replaced.items() if old is not None}
            super().detach(error)

    # -- the first step ------------------------------------------------------------------------------------------------

    def _before_step(self) -> None:
        self.finish()
        changed = [unit for unit in self.units if unit.is_changed()]  # all of them forget what they remembered
        if changed:
            self.barrier_reason = "gradients are changed between backward and step(), for which all are needed"

    def _after_step(self) -> None:
        self._pass += 1
        if self._reads is not None:
            reads, self._reads = self._reads, None
            reads.stop()
            self._start_crossing(reads)

    def _start_crossing(self, reads: FirstReads) -> None:
        """From here on steps cross, unless something speaks against it."""
        for handle in self._around_step:
            handle.remove()
        parameters = [parameter for unit in self.units for parameter in unit.parameters]
        self.barrier_reason = self.barrier_reason or reason_against(self._optimizer, parameters) or ""
        if self.barrier_reason:
            self._around_step = self._hook_step()
            return
        for module, keys in waiting_modules(self.model, reads, parameters).items():
            units = [unit for unit in self.units if any(id(p) in keys for p in unit.parameters)]
            self._handles.append(module.register_forward_pre_hook(self._before_read(units), prepend=True))
        for unit in self.units:
            unit.start()
            unit.hide()
        self._parts = UnitOptimizers(self._optimizer, self.units)
        self._handles += [
            self.model.register_forward_pre_hook(self._enter_model, prepend=True),
            self.model.register_state_dict_pre_hook(lambda *_: self.settle()),
            self.model.register_load_state_dict_pre_hook(lambda *_: self.settle()),
            self._optimizer.register_state_dict_pre_hook(lambda _: self.settle()),
            self._optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle()),
        ]
        self._override("step", Engine._step)
        self._override("zero_grad", Engine._zero_grad)
        self._crosses = self._scheduler.lands_early = True

    def _override(self, name: str, method: Callable[..., None]) -> None:
        """Bound to the optimizer, with the attributes of what it replaces: schedulers look at both."""
        engine, replaced = self, getattr(self._optimizer, name)
        self._replaced[name] = self._optimizer.__dict__.get(name)

        @functools.wraps(replaced)
        def call(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001 - bound to it
            method(engine, *args, **kwargs)

        setattr(self._optimizer, name, types.MethodType(call, self._optimizer))

    # -- forward -------------------------------------------------------------------------------------------------------

    def _before_read(self, units: Sequence[Unit]) -> Callable[[nn.Module, Any], None]:
        def hook(_module: nn.Module, _inputs: Any) -> None:
            for unit in units:
                if unit.options is not None:
                    self._stall([unit], Stage.FILLING)
                if unit.hidden:
                    unit.point()

        return hook

    def _enter_model(self, _module: nn.Module, _inputs: Any) -> None:
        """Where steps cross: a pass without a step after the last adds to the gradients of that one. Every rank waits for
        them here, for all of them, whichever parts of the model it will run.
        """
        again = [unit for unit in self.units if unit.stage is not Stage.FILLING and unit.options is None]
        if again and torch.is_grad_enabled():
            self.finish()
            self._stall(self.units, Stage.LANDED)
            for unit in self.units:
                unit.reopen()

    def _stall(self, units: Sequence[Unit], stage: Stage) -> None:
        """Wait, and keep account of it: the device has nothing to do meanwhile."""
        if not units:
            return
        seconds = self._wait(units, stage)
        self.stalled_s += seconds
        self._setting.on_stall(seconds)
        if self._scheduler.recording:
            ended_s = time.perf_counter()
            self._stalls.append((ended_s - seconds, ended_s))

    # -- in place of the optimizer's -----------------------------------------------------------------------------------

    def _step(self, closure: Any = None) -> None:
        """What has landed is applied now, the rest as it lands."""
        if closure is not None:
            raise ValueError("step(closure) needs all gradients at once: set crosses_steps to false")
        assert self._parts is not None
        self.finish()
        if any(unit.touched() for unit in self.units):
            raise RuntimeError(
                "gradients were changed between backward and step(), in the first step they were not: "
                "set crosses_steps to false"
            )
        self._optimizer._opt_called = True  # type: ignore[attr-defined] # lr schedulers look at it
        options = self._parts.options()
        for unit in reversed(self.units):
            unit.hide()
            with self._changing:
                landed = unit.stage is Stage.LANDED
                unit.options = options
            if landed:
                self._update(unit, options)
        self._pass += 1

    def _zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - torch's signature
        """What is on its way is not touched, what is not is forgotten."""
        for unit in self.units:
            if unit.options is None:
                unit.forget()

    def _update(self, unit: Unit, options: list[dict[str, Any]]) -> None:
        assert self._parts is not None
        self._parts.update(unit, options)
        with self._changing:
            unit.start()
