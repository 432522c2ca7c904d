"""Steps that overlap: the next one begins before the last one's gradients have arrived.

A call of `optimizer.step()` only notes the options of that moment: each unit is updated when it has landed. Whatever then uses
a parameter, the next forward pass above all, waits for that parameter's unit (`tracked`). Whatever uses a gradient, such as
clipping, waits for the gradient; a `step()` before which gradients were used, or which needs all of them for another reason,
waits for all and is the optimizer's own. So a script may do anything at any time, and only pays for what it uses.

The first step never overlaps: it shows whether the model is compiled, and in which order gradients come. Optimizers that do
more than update each parameter on its own never do. `barrier_reason` says why steps do not overlap, or did not once.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autotune.runtime.override import Override
from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.reduce.buffer_optimizer import UnitOptimizer, needs_all, reason_against
from autotune.runtime.reduce.fusion_buffer import Stage, Unit
from autotune.runtime.reduce.make_buffers import optimized, roots_of
from autotune.runtime.reduce.scheduled import Exchange, Setting
from autotune.runtime.tracked import can_track, raw, track, untrack
from autotune.workloads.plan import Plan

READ = "gradients are read or changed between backward() and step(), for which all are needed"


class Engine(Exchange):
    """An exchange whose steps overlap, if the plan says so and nothing speaks against it."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        plan: Plan,
        group: dist.ProcessGroup,
        setting: Setting,
    ) -> None:
        self._may_cross = plan.comm.reducer == "scheduled" and plan.comm.crosses_steps
        self.barrier_reason = "" if self._may_cross else "the plan says so"
        """Why steps do not overlap, or one did not; empty while all do, or may."""
        self.on_barrier: Callable[[str], None] = lambda _: None
        """Called when `barrier_reason` is found while training."""
        self.stalled_s = 0.0
        self._stalls: list[tuple[float, float]] = []
        self._replaced: list[tuple[Any, str, Any]] = []
        self._parts: list[UnitOptimizer] = []
        self._is_compiled = self._is_first_over = False
        super().__init__(model, optimizers, plan, group, setting)
        for reason in filter(None, map(reason_against, self._optimizers if self._may_cross else ())):
            self._may_cross, self.barrier_reason = False, reason

    def flush(self) -> None:
        """Wait until nothing is on its way. No forward pass waits here, so this is no part of `stalled_s`."""
        self._rest()

    def sent(self) -> Sent:
        """What has landed since the last call, while recording, and how long forward passes have waited."""
        stalled_s, self.stalled_s = self.stalled_s, 0.0
        stalls, self._stalls = tuple(self._stalls), []
        return replace(super().sent(), stalls=stalls, stalled_s=stalled_s)

    # -- when steps begin to overlap, and when they end to ---------------------------------------------------------------

    def _build(self, *, is_first: bool) -> None:
        super()._build(is_first=is_first)
        if self._may_cross and self._is_first_over:
            self._start_crossing()

    def _take_down(self, error: BaseException | None) -> None:
        self._stop_crossing()
        super()._take_down(error)

    def _after_step(self) -> None:
        super()._after_step()
        self._is_first_over = True

    def _maintain(self) -> None:
        super()._maintain()
        if self._may_cross and self._is_first_over and not self._crosses:
            self._start_crossing()

    def _enter_model(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            self._is_compiled = True
        else:
            super()._enter_model(module, inputs)

    def _start_crossing(self) -> None:
        """From here on steps overlap, unless something speaks against it."""
        self._rest()
        self._show()
        for handle in self._around_step:
            handle.remove()
        self._around_step = []
        if reason := self._reason_against():
            self._may_cross = False
            self._say(reason)
            self._around_step = self._hook_steps()
            return
        everywhere = [_Arrivals(self, unit, place) for unit in self.units for place in range(len(unit.parameters))]
        for arrivals in everywhere:
            track(arrivals.parameter, arrivals)
        self._mine = [self._make_mine(optimizer, everywhere) for optimizer in self._optimizers]
        for optimizer, mine in zip(self._optimizers, self._mine, strict=True):
            self._override(optimizer, "step", functools.partial(self._step, mine))
            self._override(optimizer, "zero_grad", ZeroGrad(self, functools.partial(optimized, optimizer)))
            self._parts.append(mine.part)
            self._handles += [
                optimizer.register_state_dict_pre_hook(lambda _: self.flush()),
                optimizer.register_load_state_dict_pre_hook(lambda *_: self.flush()),
            ]
        for root in roots_of(self.model):
            self._override(root, "zero_grad", ZeroGrad(self, root.parameters))
        self._crosses = self._scheduler.lands_early = True

    def _make_mine(self, optimizer: Optimizer, everywhere: Sequence[_Arrivals]) -> _Mine:
        chosen = {id(p) for p in optimized(optimizer)}
        known = [arrivals for arrivals in everywhere if id(arrivals.parameter) in chosen]
        units = [unit for unit in self.units if any(arrivals.unit is unit for arrivals in known)]
        inside = {id(arrivals.parameter) for arrivals in known}
        return _Mine(
            optimizer=optimizer,
            units=units,
            part=UnitOptimizer(optimizer, units),
            tracked=known,
            others=[p for p in optimized(optimizer) if id(p) not in inside],
        )

    def _stop_crossing(self) -> None:
        for unit in self.units:
            for parameter in unit.parameters:
                untrack(parameter)
        for place, name, replaced in reversed(self._replaced):
            if replaced is None:
                del place.__dict__[name]
            else:
                place.__dict__[name] = replaced
        self._replaced.clear()
        self._parts.clear()
        self._crosses = False

    def _reason_against(self) -> str:
        for optimizer in self._optimizers:
            if reason := reason_against(optimizer) or needs_all(optimizer):
                return reason
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.model.modules()):
            return "the model has TorchScript modules, whose reads of parameters are not seen"
        if self._is_compiled:
            return "the model is compiled, and would be compiled in pieces"
        if not can_track(one.parameter for one in self._trained):
            return "the model has parameters of a class of its own"
        return ""

    def _override(self, place: Any, name: str, call: Callable[..., Any]) -> None:
        """Bound to the object, with the attributes of what it replaces: lr schedulers look at both."""
        replaced = getattr(place, name)
        self._replaced.append((place, name, place.__dict__.get(name)))
        place.__dict__[name] = Override(place, name, functools.partial(call, replaced))

    def _say(self, reason: str) -> None:
        if not self.barrier_reason:
            self.barrier_reason = reason
            self.on_barrier(reason)

    # -- what a script does while steps overlap --------------------------------------------------------------------------

    def stall(self, unit: Unit) -> None:
        """Wait for a unit, and keep account of it: the device has nothing to do meanwhile."""
        seconds = self._wait([unit])
        self.stalled_s += seconds
        self._setting.on_stall(seconds)
        if self._scheduler.recording:
            ended_s = time.perf_counter()
            self._stalls.append((ended_s - seconds, ended_s))

    def read(self, unit: Unit) -> None:
        """The script uses a gradient that may be on its way."""
        if unit.stage is not Stage.FILLING and not unit.is_shown:
            if not unit.is_applied:
                self._say(READ)
            self.stall(unit)
            with raw():
                unit.show()

    def _step(self, mine: _Mine, replaced: Callable[..., Any], closure: Any = None) -> Any:
        """What has landed is applied now, the rest as it lands."""
        self._before_step()
        self._num_steps += 1
        if closure is not None:
            return replaced(closure)  # its backward passes and its reads of gradients are as any others
        if self._must_wait(mine):
            return self._step_at_once(mine, replaced)
        mine.optimizer._opt_called = True  # type: ignore[attr-defined] # lr schedulers look at it
        options = mine.part.options()
        mine.part.refresh(mine.units)
        for unit in reversed(mine.units):
            unit.is_applied = True
            with self._changing:
                landed = unit.stage is Stage.LANDED
                unit.options = options
            if landed:
                self._update(unit, options)
        return None

    def _must_wait(self, mine: _Mine) -> bool:
        """Whether gradients were used, by the script or by a step before, or the step needs all of them."""
        if reason := needs_all(mine.optimizer):
            self._say(reason)
        with raw():
            has_others = any(p.grad is not None for p in mine.others)
        is_used = any(unit.is_shown or unit.is_applied for unit in mine.units)
        has_changed = self._signature_now() != self._signature
        return bool(reason) or has_others or not mine.units or is_used or has_changed

    def _step_at_once(self, mine: _Mine, replaced: Callable[..., Any]) -> Any:
        """The optimizer's own step, on plain parameters, so that it chooses its fast implementations."""
        self._wait(mine.units)
        with raw():
            for unit in mine.units:
                unit.show()
                unit.is_applied = True
        for arrivals in mine.tracked:
            untrack(arrivals.parameter)
        try:
            return replaced()
        finally:
            for arrivals in mine.tracked:
                track(arrivals.parameter, arrivals)

    def _update(self, unit: Unit, options: list[dict[str, Any]]) -> None:
        assert unit.owner is not None
        self._parts[unit.owner].update(unit, options)
        with self._changing:
            unit.options = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mine:
    """What one optimizer updates."""

    optimizer: Optimizer
    units: list[Unit]
    part: UnitOptimizer
    tracked: list[_Arrivals]
    others: list[nn.Parameter]
    """Parameters of it that are not exchanged: frozen ones."""


class _Arrivals:
    """What is on its way to one parameter: see `tracked.Tracker`."""

    def __init__(self, engine: Engine, unit: Unit, place: int) -> None:
        self._engine, self.unit, self._place = engine, unit, place
        self.parameter = unit.parameters[place]

    def await_value(self) -> None:
        if self.unit.options is not None:
            self._engine.stall(self.unit)

    def await_gradient(self) -> None:
        self._engine.read(self.unit)

    def drop_gradient(self) -> None:
        if not self.unit.is_applied:
            self._engine.read(self.unit)
        with raw():
            self.unit.drop([self._place])


class ZeroGrad:
    """`zero_grad` of an optimizer or a model: what is on its way is not waited for."""

    def __init__(self, engine: Engine, parameters: Callable[[], Iterable[nn.Parameter]]) -> None:
        """`parameters`: those that it is for at the time of a call; a script may add some."""
        self._engine, self._parameters = engine, parameters
        self._chosen: list[int] = []
        self._places: list[tuple[Unit, list[int]]] = []
        self._others: list[nn.Parameter] = []

    def __call__(self, _replaced: Any, set_to_none: bool = True) -> None:
        self._choose(list(self._parameters()))
        for unit, places in self._places:
            if len(places) == len(unit.parameters):
                with raw():
                    unit.zero(set_to_none=set_to_none)
            elif places:
                self._zero_some(unit, places, set_to_none=set_to_none)
        _zero(self._others, set_to_none=set_to_none)

    def _choose(self, parameters: list[nn.Parameter]) -> None:
        chosen = [id(p) for p in parameters]
        if chosen == self._chosen:
            return
        self._chosen, ids = chosen, set(chosen)
        units = self._engine.units
        self._places = [(unit, [k for k, p in enumerate(unit.parameters) if id(p) in ids]) for unit in units]
        known = {id(p) for unit in units for p in unit.parameters}
        self._others = [p for p in parameters if id(p) not in known]

    def _zero_some(self, unit: Unit, places: Sequence[int], *, set_to_none: bool) -> None:
        if not set_to_none:
            self._engine.read(unit)
        with raw():
            if set_to_none:
                unit.drop(places)
            else:
                _zero([unit.parameters[place] for place in places], set_to_none=False)


def _zero(parameters: Sequence[nn.Parameter], *, set_to_none: bool) -> None:
    for parameter in parameters:
        if set_to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()
