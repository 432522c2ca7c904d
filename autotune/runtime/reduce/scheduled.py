"""A reducer that sends fusion buffers by a schedule; a backward pass returns when all gradients have completed.

A backward pass (`passes`) returns once every buffer has completed, so clipping, loss scaling and logging read the
gradients of all ranks. Gradients accumulate, as everywhere in torch: a completed buffer that was not zeroed is sent
again with what was added, each rank sending its share of the earlier result.

Parameters may be frozen, unfrozen or added to an optimizer later. Before each forward pass the set of trained
parameters is compared with the last one; if it has changed, which it must on all ranks alike, buffers and hooks are
rebuilt (`rebuild`). The same happens once after the first backward pass if it has produced gradients in another order
than that of registration.

Where nothing is left to decide (first come, first served, no limit on bytes in flight, plain sums) ranks exchange no
schedule: see `send_order.FixedOrder`. Which parameters no rank has used is then sent with the gradients.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.profilers.ranges import Ranges
from autotune.runtime.codecs.protocol import SUM, Round
from autotune.runtime.codecs.sufficient_factors import Factors
from autotune.runtime.control.network import Network
from autotune.runtime.device import handle_of
from autotune.runtime.override import Hook
from autotune.runtime.reduce.bucketed import Sent, sent_over
from autotune.runtime.reduce.fusion_buffer import FusionBuffer, Stage
from autotune.runtime.reduce.late_watch import LateWatch
from autotune.runtime.reduce.make_buffers import (
    in_order,
    make_buffers,
    make_factors,
    optimized,
    roots_of,
    signature,
    trained_parameters,
)
from autotune.runtime.reduce.owed import collect, hand_over
from autotune.runtime.reduce.passes import BackwardPasses
from autotune.runtime.reduce.send_order import FixedOrder, SendOrder, needs_no_schedule
from autotune.runtime.reduce.sender import Sender
from autotune.runtime.reduce.sparse_rows import SparseBuffer
from autotune.runtime.reduce.step_position import ended_early, odd_rank, out_of_step, position_of
from autotune.runtime.tracked import raw
from autotune.runtime.transport.traced_group import set_recording
from autotune.runtime.waits import Waits
from autotune.workloads.errors import SpecError, TrialTimeoutError
from autotune.workloads.plan import Plan

_SLICE_S = 1.0
"""How often a waiting rank checks whether another one has left."""
_LEFT_S = 2.0
"""How long gradients that a rank sent before it left may take to arrive."""


def _ignore(_amount: float) -> None:
    """The default of callbacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducerSettings:
    """How a training loop uses a reducer."""

    weight: float | None = 1.0
    """The weight of this rank's gradients: b_i/B, unless its loss is weighted already; None: not known yet."""
    calls_begin: bool = False
    """Whether every step begins with `begin`, on all ranks, and the loss is weighted already, which saves a hook."""
    on_stall: Callable[[float], None] = _ignore
    """Called with the seconds that a forward pass has waited for parameters."""
    on_rebuild: Callable[[float], None] = _ignore
    """Called with the floating-point operations of sufficient factors beyond those of an ordinary backward pass."""
    timeout_s: float = 600.0
    """The longest wait for other ranks."""
    network: Network = field(default_factory=Network.alone)
    """The control network of the ranks of the group."""
    ranges: Ranges = field(default_factory=Ranges)
    """Names the work on each buffer for a torch profiler."""
    on_accelerators: bool = False
    """Whether any rank of the job trains on an accelerator: then ranks always exchange a schedule."""


class ScheduledReducer(BackwardPasses):
    """Exchanges the gradients of `model` over `group` until `detach`. All ranks construct it together.

    Threads: the script's thread (and autograd's, inside a backward pass) calls everything but `completed` and `failed`,
    which the sender calls in any thread. `_changing` guards what several threads change of a buffer: its stage and its
    options.
    """

    loss_scale = 1.0
    needs_backward = False

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        plan: Plan,
        group: dist.ProcessGroup,
        settings: ReducerSettings,
    ) -> None:
        self.model, self._plan, self._settings, self._group = model, plan, settings, group
        self._optimizers = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        set_recording(group, on=False)  # the sender records transfers; reading them from the group would wait for all
        super().__init__(settings.weight, group.size(), calls_begin=settings.calls_begin)
        self.stalls = Waits()
        self.batch_number = self._num_steps = self.num_loads = 0
        """Batches, steps and checkpoint loads so far; they must be the same on all ranks that send gradients."""
        self._changing = threading.Lock()
        self._overlaps_steps = False
        """Whether a step ends before its gradients have completed: `CrossStepReducer` may turn it on."""
        self._order: list[int] = []
        self._is_maintained = False
        self._is_recording = False
        self._frozen_owed: dict[str, Tensor] = {}
        """What codecs owe for parameters that are frozen at present."""
        self._build(is_first=True)

    # -- what training calls -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Discard all gradients; either every rank begins each step with this call, or none does."""
        self._maintain()
        self._is_maintained = True
        self._pass += 1
        with raw():
            for buffer in self.buffers:
                buffer.zero(set_to_none=True)

    def finish(self) -> None:
        """End this pass; unless steps overlap, wait until all buffers have completed."""
        if self._finished != self._pass:
            self._finish_pass()

    @property
    def waits_in_backward(self) -> bool:
        return not self._overlaps_steps

    @property
    def _position(self) -> int:
        return position_of(self.batch_number, self._num_steps, self.num_loads)

    def flush(self) -> None:
        """Parameters are up to date when a step ends."""

    def record(self, *, on: bool) -> None:
        """Record transfers from here on."""
        self._is_recording = self._sender.recording = on

    def sent(self) -> Sent:
        """What has completed since the last call, while recording."""
        deliveries = tuple(transfer.as_delivery() for transfer in self._sender.take())
        return Sent(deliveries=deliveries, late_s=sent_over(self._group).late_s)

    def detach(self, error: BaseException | None = None) -> None:
        """Remove all hooks and references to the group. With an error, the other ranks' reducers fail too."""
        try:
            if error is None and self._error is None:
                self._wait_for_all()
                self._show()
        finally:
            self._take_down(error)
            del self._group

    def owed(self) -> dict[str, Tensor]:
        """What lossy codecs have left out so far, over all ranks, by parameter; called by all ranks together."""
        self._wait_for_all()
        return self._frozen_owed | collect(self._flat_buffers(), self._names(), self._group)

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Add `owed` to the next gradients that are sent; called by all ranks together."""
        names = self._names()
        hand_over(self._flat_buffers(), names, owed, self._group.rank())
        self._frozen_owed = {name: values for name, values in owed.items() if name not in names.values()}

    def _flat_buffers(self) -> list[FusionBuffer]:
        return [buffer for buffer in self.buffers if not isinstance(buffer, SparseBuffer)]

    # -- making and changing -------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Build buffers and hooks for the parameters that train now; called by all ranks together. Accumulated
        gradients that were not sent are sent first: a parameter that is frozen now still has one.
        """
        if self._is_unsynced:
            self._finish_pass()
        self._wait_for_all()
        self._show()
        owed = self.owed()
        self._take_down(None)
        self._build(is_first=False)
        self.owe(owed)
        self._sender.recording = self._is_recording

    def _build(self, *, is_first: bool) -> None:
        self._trained = trained_parameters(self.model, self._optimizers)
        known = [*self.model.parameters(), *(p for optimizer in self._optimizers for p in optimized(optimizer))]
        self._known = list({id(p): p for p in known}.values())
        self._signature = self._signature_now()
        factors = make_factors(self.model, self._plan, self._make_factors, is_first=is_first)
        self._ordered = in_order(self._trained, self._order)
        self.buffers = make_buffers(self._ordered, self._plan, self._group, factors)
        self.buffer_bytes = sum(buffer.codec.buffer_bytes(buffer.flat) for buffer in self.buffers)
        self._device = handle_of(self.buffers[0].flat)
        self._updates_on = self._device.new_stream()
        # What travels with the gradients in a fixed order would be read from the device, buffer by buffer.
        self._has_fixed_order = not self._settings.on_accelerators and needs_no_schedule(self._plan.comm, self.buffers)
        self._checks_steps = self._has_fixed_order and all(
            buffer.flat.dtype in (torch.float32, torch.float64) for buffer in self.buffers
        )
        fixed_order = FixedOrder.of(self._plan.comm, self.buffers) if self._has_fixed_order else None
        make_order = partial(SendOrder.of, self._plan.comm, len(self.buffers), self._group.size())
        self._sender = Sender(self._group, self._settings.network, make_order, self, fixed_order, self._device)
        self._watch = LateWatch(lambda: self._sender.report_late(self._num_steps))
        self._handles: list[Any] = [*self._hook_gradients(), *self._hook_models()]
        self._around_step = self._hook_steps()

    def _take_down(self, error: BaseException | None) -> None:
        for handle in (*self._handles, *self._around_step):
            handle.remove()
        self._accumulators.clear()
        for buffer in self.buffers:
            if isinstance(buffer.codec, Factors):
                buffer.codec.detach()
        self._watch.close()
        self._sender.close(error)

    def _signature_now(self) -> tuple[object, ...]:
        with raw():
            return signature(self._known, self._optimizers)

    def _maintain(self) -> None:
        """Before a pass: rebuild if the trained parameters, or the known order of their gradients, have changed."""
        if self._signature_now() != self._signature:
            self._order, self._arrivals, self._have_arrived = [], {}, False
            self.rebuild()
        elif self._arrivals is not None and self._have_arrived:
            self._learn_order()

    def _learn_order(self) -> None:
        """Use rank 0's order of the first backward pass on all ranks."""
        self._wait_for_all()
        arrivals, self._arrivals = list(self._arrivals or {}), None
        order = torch.full((len(self._trained),), -1, dtype=torch.int64, device=self.buffers[0].flat.device)
        order[: len(arrivals)] = torch.tensor(arrivals, dtype=torch.int64)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([order], options).wait()
        self._order = [place for place in order.tolist() if place >= 0]
        if [one.name for one in in_order(self._trained, self._order)] != [one.name for one in self._ordered]:
            self.rebuild()

    # -- called by the sender, in any thread ----------------------------------------------------------------------------

    def completed(self, index: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        buffer = self.buffers[index]
        if self._has_fixed_order:
            self._check_step(buffer)
            unused = buffer.unmarked()
        elif (more := buffer.codec.decode(received, buffer.flat)) is not None:
            buffer.round += 1
            self._sender.mark_ready(index, buffer.round, more, unused, position=buffer.position)
            return
        written, arrived = self._device.mark(), self._device.stamp()
        with self._changing:
            buffer.complete(unused, written, arrived)
            options = buffer.options
        if options is not None:
            # In a stream of its own: it waits for the end of the backward pass, and later completions must not.
            with self._device.on(self._updates_on):
                self._update(buffer, options)

    def failed(self, error: Exception) -> None:
        self._error = self._error or error

    def _update(self, buffer: FusionBuffer, options: list[dict[str, Any]]) -> None:
        """Apply the update that was requested, with these options, before the buffer had completed."""
        raise NotImplementedError

    def _check_step(self, buffer: FusionBuffer) -> None:
        if not self._checks_steps:
            return
        rank, size = self._group.rank(), self._group.size()
        if (odd := odd_rank(buffer.checks, size, rank, buffer.position)) is not None:
            raise SpecError(out_of_step(odd))

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, buffer: FusionBuffer) -> None:
        missing = buffer.close()
        buffer.position = self._position
        buffer.stage, buffer.sent_in = Stage.IN_FLIGHT, self._pass
        self._sender.mark_ready(buffer.index, 0, self._first_round(buffer, missing), missing, position=buffer.position)

    def _all_sent(self) -> None:
        if not self._overlaps_steps:
            self._wait_for_all()
            self._show()

    def _first_round(self, buffer: FusionBuffer, missing: Sequence[int]) -> Round:
        if self._has_fixed_order:
            return Round(kind=SUM, tensors=(buffer.marked(missing, self._group.rank(), buffer.position),))
        return buffer.codec.encode(buffer.flat)

    def _make_factors(self, module: nn.Linear) -> Factors:
        return Factors(module, weight=lambda: self.weight or 0.0, on_rebuild=self._settings.on_rebuild)

    def _hook_models(self) -> list[Any]:
        hook = Hook(self._enter_model)
        return [root.register_forward_pre_hook(hook, prepend=True) for root in roots_of(self.model)]

    def _enter_model(self, _module: nn.Module, _inputs: Any) -> None:
        if self._is_maintained or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            self._is_maintained = False
        else:
            self._maintain()

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait_for_all(self) -> None:
        """Wait until nothing is in flight."""
        self._wait(self.buffers)

    def _show(self) -> None:
        with raw():
            for buffer in self.buffers:
                buffer.show()

    def _wait(self, buffers: Sequence[FusionBuffer]) -> float:
        """Wait until nothing of these buffers is in flight; the seconds that took."""
        begun_s = time.perf_counter()
        self._watch.begin()
        while not self._are_idle(buffers, self._settings.timeout_s if self._group.size() == 1 else _SLICE_S):
            waited_s = time.perf_counter() - begun_s
            if waited_s > _LEFT_S and (left := self._sender.left()):
                raise SpecError(ended_early(left[0], self._num_steps))
            if waited_s > self._settings.timeout_s:
                raise TrialTimeoutError(f"gradients did not arrive within {self._settings.timeout_s:g} s")
        self._watch.end()
        for buffer in buffers:
            buffer.written.wait()
        return time.perf_counter() - begun_s

    def _are_idle(self, buffers: Sequence[FusionBuffer], timeout_s: float) -> bool:
        limit_s = min(timeout_s, self._settings.timeout_s)
        is_done = self._sender.wait_until(
            lambda: self._error is not None or all(buffer.is_idle for buffer in buffers), limit_s
        )
        if self._error is not None and (left := self._sender.left()):
            raise SpecError(ended_early(left[0], self._num_steps)) from self._error
        if self._error is not None:
            raise self._error
        return is_done

    # -- around the optimizers' steps -----------------------------------------------------------------------------------

    def _hook_steps(self) -> list[Any]:
        return [
            handle
            for optimizer in self._optimizers
            for handle in (
                optimizer.register_step_pre_hook(lambda *_: self._before_step()),
                optimizer.register_step_post_hook(lambda *_: self._after_step()),
            )
        ]

    def _before_step(self) -> None:
        """Exchange gradients that were accumulated inside no_sync() only."""
        if not self._is_unsynced:
            return
        with raw():
            if any(buffer.is_edited for buffer in self.buffers if buffer.stage is Stage.FILLING):
                raise SpecError(
                    "gradients were changed (clipped?) after backward passes inside no_sync() only: they were this rank's own; "
                    "run the last backward pass before step() outside no_sync()"
                )
        self._finish_pass()

    def _after_step(self) -> None:
        self._num_steps += 1
