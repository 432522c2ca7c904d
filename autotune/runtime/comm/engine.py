"""Gradients of a model exchanged by a schedule: cut and fused, the urgent first, and the next step may begin before the
last has arrived.

Hooks on the parameters tell when a gradient is there; a unit whose last gradient is there is offered to the scheduler. With
`crosses_steps` a call of `optimizer.step()` only notes the options of that moment: each unit is updated when it has landed,
and the next forward pass waits, module by module, for the units that it is about to read. The first step never crosses: it
shows which module reads which parameter first, and whether somebody touches gradients between backward and `step()`
(clipping, loss scaling), who needs all of them at once. Then, and for optimizers that do more than update each parameter on
its own, every step ends as without crossing, and `barrier_reason` says why.
"""

from __future__ import annotations

import functools
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.comm.factors import Factors, factored_layers
from autotune.runtime.comm.factory import UnitShape, make_codec
from autotune.runtime.comm.first_reads import FirstReads, waiting_modules
from autotune.runtime.comm.grants import Grants
from autotune.runtime.comm.initial_values import share_initial_values
from autotune.runtime.comm.scheduler import Flight, Scheduler
from autotune.runtime.comm.unit import Stage, Unit
from autotune.runtime.comm.unit_optimizer import UnitOptimizers, reason_against
from autotune.runtime.reducer import Sent, sent_over
from autotune.runtime.traced_group import Delivery
from profilers.ranges import Ranges
from workloads.buckets import unit_indices
from workloads.errors import SpecError, TrialTimeoutError
from workloads.plan import Plan


def _nothing(_amount: float) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """How an engine is put to use."""

    weight: float = 1.0
    """What this rank's gradient counts: b_i/B, unless its loss is weighted already."""
    on_stall: Callable[[float], None] = _nothing
    """Told whenever a forward pass has waited for parameters, and how long."""
    on_rebuild: Callable[[float], None] = _nothing
    """Told the floating-point operations that a gradient made of factors took beyond those of an ordinary backward pass."""
    timeout_s: float = 600.0
    """The longest wait for other ranks."""
    ranges: Ranges = field(default_factory=Ranges)
    """Tells a torch profiler what is done with each unit of gradients."""


class Engine:
    """Exchanges the gradients of `model` over `group` from the moment it is made, by all ranks together.

    Between its steps the model's gradients belong to the engine.
    """

    loss_scale = 1.0
    needs_backward = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: Plan,
        group: dist.ProcessGroup,
        setting: Setting,
    ) -> None:
        self.model, self._optimizer, self._setting = model, optimizer, setting
        self.weight = setting.weight
        """What this rank's gradient counts, in the steps that follow."""
        comm = plan.comm
        share_initial_values(model, group)
        self.units = _make_units(model, plan, group, self._make_factors)
        self.buffer_bytes = sum(unit.codec.buffer_bytes(unit.flat) for unit in self.units)
        self._group = group
        self._stalled_s = 0.0
        self._stalls: list[tuple[float, float]] = []
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._syncs = True
        self._in_backward = False
        self._pass = 1
        """Counts backward passes, and steps: a unit is offered once in each."""
        self._finished = 0
        """The last of them that was waited for."""
        self._crosses = False
        self._parts: UnitOptimizers | None = None
        self.barrier_reason = "" if comm.crosses_steps else "the plan says so"
        """Why steps do not cross; empty while they do, or may."""
        self._handles: list[Any] = self._hook_gradients()
        self._replaced: dict[str, Any] = {}
        self._reads: FirstReads | None = None
        if comm.crosses_steps:
            self._watch_first_step()
        self._around_step = self._hook_step()
        priorities = range(len(self.units), 0, -1) if comm.priority == "layer" else None
        self._scheduler = Scheduler(
            group,
            lambda: Grants(
                num_ranks=group.size(),
                partition_bytes=comm.partition_bytes,
                credit_bytes=comm.credit_bytes,
                priorities=priorities,
            ),
            self,
        )

    # -- what a training loop calls ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget the gradients there are, where none is under way."""
        self._pass += 1
        if not self._crosses:
            for unit in self.units:
                unit.start()
                unit.point()

    def finish(self) -> None:
        """No more gradients come in this step; unless steps cross, wait until all have landed."""
        for unit in self.units:
            if unit.offered_in != self._pass:
                if unit.options is not None:
                    self._wait([unit], Stage.FILLING)
                elif unit.stage is not Stage.FILLING:
                    self._wait([unit], Stage.LANDED)
                    unit.reopen()
                self._offer(unit)
        if not self._crosses and self._finished != self._pass:
            self._finished = self._pass
            self._wait(self.units, Stage.LANDED)
            for unit in self.units:
                unit.hide_unused()
                if self._reads is not None:
                    unit.remember()

    def settle(self) -> None:
        """Wait until every parameter is up to date."""
        if self._crosses:
            self._wait([unit for unit in self.units if unit.options is not None], Stage.FILLING)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the first one after it exchanges what all of them left."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    def record(self, *, on: bool) -> None:
        """Note what flies from here on."""
        self._scheduler.recording = on

    def sent(self) -> Sent:
        """What has landed since the last call, while recording, and how long forward passes have waited."""
        noted = sent_over(self._group)
        stalled_s, self._stalled_s = self._stalled_s, 0.0
        stalls, self._stalls = tuple(self._stalls), []
        deliveries = tuple(_delivery(flight) for flight in self._scheduler.take())
        return Sent(deliveries=deliveries, late_s=noted.late_s, stalls=stalls, stalled_s=stalled_s)

    def detach(self, error: BaseException | None = None) -> None:
        """Let go of model, optimizer and group. With an error, the other ranks' engines end with it."""
        if error is None and self._error is None:
            self.settle()
        for handle in self._handles:
            handle.remove()
        for unit in self.units:
            if isinstance(unit.codec, Factors):
                unit.codec.detach()
        for handle in self._around_step:
            handle.remove()
        if self._reads is not None:
            self._reads.stop()
        self._optimizer.__dict__ = {k: v for k, v in self._optimizer.__dict__.items() if k not in self._replaced}
        self._optimizer.__dict__ |= {name: old for name, old in self._replaced.items() if old is not None}
        self._scheduler.close(error)
        del self._group

    # -- what the scheduler calls, from its own thread -----------------------------------------------------------------

    def landed(self, index: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        unit = self.units[index]
        more = unit.codec.decode(received, unit.flat)
        if more is not None:
            unit.round += 1
            self._scheduler.offer(index, unit.round, more, unused)
            return
        with self._changed:
            unit.land(unused)
            options = unit.options
            self._changed.notify_all()
        if options is not None:
            self._update(unit, options)

    def failed(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _hook_gradients(self) -> list[Any]:
        return [
            parameter.register_post_accumulate_grad_hook(self._accumulated(unit, place))
            for unit in self.units
            for place, parameter in enumerate(unit.parameters)
        ]

    def _accumulated(self, unit: Unit, place: int) -> Callable[[Tensor], None]:
        def hook(_parameter: Tensor) -> None:
            if not self._in_backward:
                self._in_backward = True
                torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
                self._pass += 1
            if unit.stage is Stage.LANDED and unit.offered_in != self._pass and not self._crosses:
                unit.reopen()
            if unit.stage is not Stage.FILLING:
                raise RuntimeError(self._too_late(unit, place))
            if isinstance(unit.codec, Factors) and not unit.has_traveled and unit.is_written(place):
                raise SpecError(
                    f"{self._name_of(unit, place)} has a gradient beside that of its Linear layer, so its factors do not "
                    "make it up: take the layer out of the plan's factors"
                )
            if unit.accumulated(place, last=self._syncs):
                self._offer(unit)

        return hook

    def _too_late(self, unit: Unit, place: int) -> str:
        name = self._name_of(unit, place)
        if unit.options is not None:
            return (
                f"{name} was used before its new value had arrived, outside the module that read it in the first "
                "step: set crosses_steps to false"
            )
        return (
            f"{name} received a gradient after its gradients had been sent: run all backward passes of one step but the "
            "last inside no_sync()"
        )

    def _name_of(self, unit: Unit, place: int) -> str:
        names = {id(p): name for name, p in self.model.named_parameters()}
        return names.get(id(unit.parameters[place]), "a parameter")

    def _offer(self, unit: Unit) -> None:
        missing = unit.close()
        if self.weight != 1.0 and not isinstance(unit.codec, Factors):
            unit.flat.mul_(self.weight)
        first = unit.codec.encode(unit.flat)
        unit.stage, unit.offered_in = Stage.OFFERED, self._pass
        self._scheduler.offer(unit.index, 0, first, missing)

    def _make_factors(self, module: nn.Linear) -> Factors:
        return Factors(module, weight=lambda: self.weight, on_rebuild=self._setting.on_rebuild)

    def _end_backward(self) -> None:
        self._in_backward = False
        if self._syncs and not self._crosses:
            self.finish()

    # -- forward -------------------------------------------------------------------------------------------------------

    def _before_read(self, units: Sequence[Unit]) -> Callable[[nn.Module, Any], None]:
        def hook(_module: nn.Module, _inputs: Any) -> None:
            for unit in units:
                if unit.options is not None:
                    self._wait([unit], Stage.FILLING)
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
            self._wait(self.units, Stage.LANDED)
            for unit in self.units:
                unit.reopen()

    def _wait(self, units: Sequence[Unit], stage: Stage) -> None:
        begun_s = time.perf_counter()
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: self._error or all(unit.stage is stage for unit in units), self._setting.timeout_s
            )
        if self._error is not None:
            raise self._error
        if not arrived:
            raise TrialTimeoutError(f"gradients did not arrive within {self._setting.timeout_s:g} s")
        if self._crosses:
            ended_s = time.perf_counter()
            self._stalled_s += ended_s - begun_s
            self._setting.on_stall(ended_s - begun_s)
            if self._scheduler.recording:
                self._stalls.append((begun_s, ended_s))

    # -- crossing ------------------------------------------------------------------------------------------------------

    def _hook_step(self) -> list[Any]:
        return [
            self._optimizer.register_step_pre_hook(lambda *_: self._before_step()),
            self._optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]

    def _before_step(self) -> None:
        self.finish()
        if self._reads is not None and any(unit.is_changed() for unit in self.units):
            self.barrier_reason = "gradients are changed between backward and step(), for which all are needed"

    def _after_step(self) -> None:
        self._pass += 1
        if self._reads is not None:
            self._start_crossing()

    def _watch_first_step(self) -> None:
        self.barrier_reason = reason_against(self._optimizer, self._parameters()) or ""
        if not self.barrier_reason:
            self._reads = FirstReads(self.model)

    def _start_crossing(self) -> None:
        """The first step is over: from here on steps cross, unless something speaks against it."""
        for handle in self._around_step:
            handle.remove()
        reads, self._reads = self._reads, None
        assert reads is not None
        reads.stop()
        self.barrier_reason = self.barrier_reason or reason_against(self._optimizer, self._parameters()) or ""
        if self.barrier_reason:
            self._around_step = self._hook_step()
            return
        for module, keys in waiting_modules(self.model, reads, self._parameters()).items():
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
        self._crosses = True

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for unit in self.units for parameter in unit.parameters]

    def _override(self, name: str, method: Callable[..., None]) -> None:
        """Bound to the optimizer, with the attributes of what it replaces: schedulers look at both."""
        engine, replaced = self, getattr(self._optimizer, name)
        self._replaced[name] = self._optimizer.__dict__.get(name)

        @functools.wraps(replaced)
        def call(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001 - bound to it
            method(engine, *args, **kwargs)

        setattr(self._optimizer, name, types.MethodType(call, self._optimizer))

    def _step(self, closure: Any = None) -> None:
        """In place of the optimizer's: what has landed is applied now, the rest as it lands."""
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
            with self._changed:
                landed = unit.stage is Stage.LANDED
                unit.options = options
            if landed:
                self._update(unit, options)
        self._pass += 1

    def _zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - torch's signature
        """In place of the optimizer's: what is on its way is not touched, what is not is forgotten."""
        for unit in self.units:
            if unit.options is None:
                unit.forget()

    def _update(self, unit: Unit, options: list[dict[str, Any]]) -> None:
        assert self._parts is not None
        self._parts.update(unit, options)
        with self._changed:
            unit.start()
            self._changed.notify_all()


def _make_units(
    model: nn.Module, plan: Plan, group: dist.ProcessGroup, make_factors: Callable[[nn.Linear], Factors]
) -> list[Unit]:
    """Parameters from last to first, fused up to a partition; layers that send factors alone."""
    factors = factored_layers(model, plan.compression.factors, make_factors)
    trained = [p for p in reversed(list(model.parameters())) if p.requires_grad]
    cut = unit_indices(
        plan.comm.partition_bytes,
        [p.numel() * p.element_size() for p in trained],
        kinds=[(p.dtype, p.device) for p in trained],
        layers=[factors.get(id(p)) for p in trained],
    )
    units = []
    for index, places in enumerate(cut):
        parameters = [trained[place] for place in places]
        if (layer := factors.get(id(parameters[0]))) is not None:
            units.append(Unit(index, layer.parameters, layer))
        else:
            codec = make_codec(plan.compression, UnitShape.of(parameters, group))
            units.append(Unit(index, parameters, codec))
    return units


def _delivery(flight: Flight) -> Delivery:
    again = f" round {flight.round}" if flight.round else ""
    return Delivery(
        name=f"unit {flight.unit}{again} part {flight.part}",
        num_bytes=flight.num_bytes,
        ready_s=flight.offered_s,
        posted_s=flight.posted_s,
        end_s=flight.landed_s,
    )
