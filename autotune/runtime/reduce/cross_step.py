"""Cross-step overlap: a step begins before the gradients of the last one have completed.

A call of `optimizer.step()` only records the options of that moment; each buffer is updated when it completes. Every
read of a parameter, above all by the next forward pass, waits for that parameter's buffer (`tracked`). Every read of a
gradient, such as clipping, waits for that gradient. A `step()` after a read of gradients, or one that needs all of them
for another reason, waits for all buffers and runs the optimizer itself. So a script stays correct whatever it reads,
and waits only for that.

The first step does not overlap: it shows whether the model is compiled, and the order in which gradients are produced.
Steps of an optimizer that does more than update each parameter on its own never overlap. `barrier_reason` holds the
reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autotune.runtime.override import Override
from autotune.runtime.reduce.bucketed import Sent
from autotune.runtime.reduce.buffer_optimizer import BufferOptimizer, needs_all, reason_against
from autotune.runtime.reduce.fusion_buffer import FusionBuffer, Stage
from autotune.runtime.reduce.make_buffers import optimized, roots_of
from autotune.runtime.reduce.scheduled import ReducerSettings, ScheduledReducer
from autotune.runtime.tracked import can_track, raw, track, untrack
from autotune.workloads.plan import Plan

READ = "gradients are read or changed between backward() and step(), for which all are needed"


class CrossStepReducer(ScheduledReducer):
    """A scheduled reducer whose steps overlap, if the plan says so and nothing prevents it.

    Threads: as `ScheduledReducer`; an update of a buffer runs in the thread that completes it, or in the script's if it
    has completed before `step()`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        plan: Plan,
        group: dist.ProcessGroup,
        settings: ReducerSettings,
    ) -> None:
        self._may_overlap = plan.comm.overlaps_steps
        self.barrier_reason = "" if self._may_overlap else "the plan says so"
        """Why steps do not overlap, or one did not; empty as long as all may."""
        self.on_barrier: Callable[[str], None] = lambda _: None
        """Called with `barrier_reason` when it is set during training."""
        self._replaced: list[tuple[Any, str, Any]] = []
        self._by_optimizer: list[BufferOptimizer] = []
        self._is_compiled = self._is_first_over = False
        super().__init__(model, optimizers, plan, group, settings)
        for reason in filter(None, map(reason_against, self._optimizers if self._may_overlap else ())):
            self._may_overlap, self.barrier_reason = False, reason

    def flush(self) -> None:
        """Wait until nothing is in flight. No forward pass waits here, so `stalled_s` does not include it."""
        self._wait_for_all()

    def sent(self) -> Sent:
        """What has completed since the last call, while recording, and how long forward passes have waited."""
        stalls = self.stalls.take()
        stalled_s = sum(ended_s - begun_s for begun_s, ended_s in stalls)
        return replace(super().sent(), stalls=stalls if self._sender.recording else (), stalled_s=stalled_s)

    # -- start and end of the overlap -------------------------------------------------------------------------------------

    def _build(self, *, is_first: bool) -> None:
        super()._build(is_first=is_first)
        if self._may_overlap and self._is_first_over:
            self._start_overlap()

    def _take_down(self, error: BaseException | None) -> None:
        self._stop_overlap()
        super()._take_down(error)

    def _after_step(self) -> None:
        super()._after_step()
        self._is_first_over = True

    def _maintain(self) -> None:
        super()._maintain()
        if self._may_overlap and self._is_first_over and not self._overlaps_steps:
            self._start_overlap()

    def _enter_model(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            self._is_compiled = True
        else:
            super()._enter_model(module, inputs)

    def _start_overlap(self) -> None:
        """Overlap steps from here on, unless something prevents it."""
        self._wait_for_all()
        self._show()
        for handle in self._around_step:
            handle.remove()
        self._around_step = []
        if reason := self._reason_against():
            self._may_overlap = False
            self._note_barrier(reason)
            self._around_step = self._hook_steps()
            return
        trackers = [
            _ParameterTracker(self, buffer, place) for buffer in self.buffers for place in range(len(buffer.parameters))
        ]
        for tracker in trackers:
            track(tracker.parameter, tracker)
        for optimizer in self._optimizers:
            stepped = self._stepped_by(optimizer, trackers)
            self._override(optimizer, "step", functools.partial(self._step, stepped))
            self._override(optimizer, "zero_grad", ZeroGrad(self, functools.partial(optimized, optimizer)))
            self._by_optimizer.append(stepped.by_buffer)
            self._handles += [
                optimizer.register_state_dict_pre_hook(lambda _: self.flush()),
                optimizer.register_load_state_dict_pre_hook(lambda *_: self.flush()),
            ]
        for root in roots_of(self.model):
            self._override(root, "zero_grad", ZeroGrad(self, root.parameters))
        self._overlaps_steps = self._sender.completes_early = True

    def _stepped_by(self, optimizer: Optimizer, trackers: Sequence[_ParameterTracker]) -> _Stepped:
        chosen = {id(p) for p in optimized(optimizer)}
        tracked = [tracker for tracker in trackers if id(tracker.parameter) in chosen]
        buffers = [buffer for buffer in self.buffers if any(tracker.buffer is buffer for tracker in tracked)]
        inside = {id(tracker.parameter) for tracker in tracked}
        return _Stepped(
            optimizer=optimizer,
            buffers=buffers,
            by_buffer=BufferOptimizer(optimizer, buffers),
            tracked=tracked,
            others=[p for p in optimized(optimizer) if id(p) not in inside],
        )

    def _stop_overlap(self) -> None:
        for buffer in self.buffers:
            for parameter in buffer.parameters:
                untrack(parameter)
        for place, name, replaced in reversed(self._replaced):
            if replaced is None:
                del place.__dict__[name]
            else:
                place.__dict__[name] = replaced
        self._replaced.clear()
        self._by_optimizer.clear()
        self._overlaps_steps = False

    def _reason_against(self) -> str:
        for optimizer in self._optimizers:
            if reason := reason_against(optimizer) or needs_all(optimizer):
                return reason
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.model.modules()):
            return "the model has TorchScript modules, whose reads of parameters cannot be intercepted"
        if self._is_compiled:
            return "the model is compiled, and would be compiled in pieces"
        if not can_track(one.parameter for one in self._trained):
            return "the model has parameters of a class of its own"
        return ""

    def _override(self, place: Any, name: str, call: Callable[..., Any]) -> None:
        """Bound to the object, with the attributes of what it replaces: lr schedulers read both."""
        replaced = getattr(place, name)
        self._replaced.append((place, name, place.__dict__.get(name)))
        place.__dict__[name] = Override(place, name, functools.partial(call, replaced))

    def _note_barrier(self, reason: str) -> None:
        if not self.barrier_reason:
            self.barrier_reason = reason
            self.on_barrier(reason)

    # -- what a script does while steps overlap --------------------------------------------------------------------------

    def stall(self, buffer: FusionBuffer) -> None:
        """Wait for a buffer and count the seconds in which the device is idle: an accelerator updates others meanwhile."""
        begun = self._device.stamp()
        seconds = self._wait([buffer])
        arrived = buffer.arrived if self._device.is_accelerator else None
        self.stalls.add(begun, arrived or self._device.stamp())
        self._settings.on_stall(seconds)

    def read(self, buffer: FusionBuffer) -> None:
        """The script reads a gradient that may be in flight."""
        if buffer.stage is not Stage.FILLING and not buffer.is_shown:
            if not buffer.is_applied:
                self._note_barrier(READ)
            self.stall(buffer)
            with raw():
                buffer.show()

    def _step(self, stepped: _Stepped, replaced: Callable[..., Any], closure: Any = None) -> Any:
        """Apply the buffers that have completed now, the others when they complete."""
        self._before_step()
        self._num_steps += 1
        if closure is not None:
            return replaced(closure)  # its backward passes and reads of gradients pass through the hooks
        if self._must_wait(stepped):
            return self._step_at_once(stepped, replaced)
        stepped.optimizer._opt_called = True  # type: ignore[attr-defined] # lr schedulers read it
        options, requested = stepped.by_buffer.options(), self._device.mark()
        stepped.by_buffer.refresh(stepped.buffers)
        for buffer in reversed(stepped.buffers):
            buffer.is_applied, buffer.requested = True, requested
            with self._changing:
                is_completed = buffer.stage is Stage.COMPLETED
                buffer.options = options
            if is_completed:
                self._update(buffer, options)
        return None

    def _must_wait(self, stepped: _Stepped) -> bool:
        """Whether gradients were read, by the script or by an earlier step, or this step needs all of them."""
        if reason := needs_all(stepped.optimizer):
            self._note_barrier(reason)
        with raw():
            has_others = any(p.grad is not None for p in stepped.others)
        is_used = any(buffer.is_shown or buffer.is_applied for buffer in stepped.buffers)
        has_changed = self._signature_now() != self._signature
        return bool(reason) or has_others or not stepped.buffers or is_used or has_changed

    def _step_at_once(self, stepped: _Stepped, replaced: Callable[..., Any]) -> Any:
        """Run the optimizer's own step on plain parameters, so that it chooses its fast implementations."""
        self._wait(stepped.buffers)
        with raw():
            for buffer in stepped.buffers:
                buffer.show()
                buffer.is_applied = True
        for tracker in stepped.tracked:
            untrack(tracker.parameter)
        try:
            return replaced()
        finally:
            for tracker in stepped.tracked:
                track(tracker.parameter, tracker)

    def _update(self, buffer: FusionBuffer, options: list[dict[str, Any]]) -> None:
        assert buffer.optimizer_index is not None
        buffer.requested.wait()
        buffer.written.wait()
        begun = self._device.stamp()
        self._by_optimizer[buffer.optimizer_index].update(buffer, options)
        written = self._device.mark()
        if self._device.is_accelerator:
            self.stalls.add_work(begun, self._device.stamp())
        with self._changing:
            buffer.written, buffer.options = written, None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stepped:
    """What one optimizer updates."""

    optimizer: Optimizer
    buffers: list[FusionBuffer]
    by_buffer: BufferOptimizer
    tracked: list[_ParameterTracker]
    others: list[nn.Parameter]
    """Its parameters that are not exchanged: frozen ones."""


class _ParameterTracker:
    """Waits for the update or the gradient of one parameter: see `tracked.Tracker`. Used by the script's thread."""

    def __init__(self, reducer: CrossStepReducer, buffer: FusionBuffer, place: int) -> None:
        self._reducer, self.buffer, self._place = reducer, buffer, place
        self.parameter = buffer.parameters[place]

    def await_value(self) -> None:
        if self.buffer.options is not None:
            self._reducer.stall(self.buffer)
        self.buffer.written.wait()

    def await_gradient(self) -> None:
        self._reducer.read(self.buffer)

    def drop_gradient(self) -> None:
        if not self.buffer.is_applied:
            self._reducer.read(self.buffer)
        with raw():
            self.buffer.drop([self._place])


class ZeroGrad:
    """`zero_grad` of an optimizer or a model, which does not wait for gradients in flight."""

    def __init__(self, reducer: CrossStepReducer, parameters: Callable[[], Iterable[nn.Parameter]]) -> None:
        """`parameters`: returns those to zero at the time of a call; a script may add some."""
        self._reducer, self._parameters = reducer, parameters
        self._chosen: list[int] = []
        self._places: list[tuple[FusionBuffer, list[int]]] = []
        self._others: list[nn.Parameter] = []

    def __call__(self, _replaced: Any, set_to_none: bool = True) -> None:
        self._choose(list(self._parameters()))
        for buffer, places in self._places:
            if len(places) == len(buffer.parameters):
                with raw():
                    buffer.zero(set_to_none=set_to_none)
            elif places:
                self._zero_some(buffer, places, set_to_none=set_to_none)
        _zero(self._others, set_to_none=set_to_none)

    def _choose(self, parameters: list[nn.Parameter]) -> None:
        chosen = [id(p) for p in parameters]
        if chosen == self._chosen:
            return
        self._chosen, ids = chosen, set(chosen)
        buffers = self._reducer.buffers
        self._places = [(buffer, [k for k, p in enumerate(buffer.parameters) if id(p) in ids]) for buffer in buffers]
        known = {id(p) for buffer in buffers for p in buffer.parameters}
        self._others = [p for p in parameters if id(p) not in known]

    def _zero_some(self, buffer: FusionBuffer, places: Sequence[int], *, set_to_none: bool) -> None:
        if not set_to_none:
            self._reducer.read(buffer)
        with raw():
            if set_to_none:
                buffer.drop(places)
            else:
                _zero([buffer.parameters[place] for place in places], set_to_none=False)


def _zero(parameters: Sequence[nn.Parameter], *, set_to_none: bool) -> None:
    for parameter in parameters:
        if set_to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()
