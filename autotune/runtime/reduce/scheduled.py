"""Gradients of a model exchanged by a schedule, and backward passes that end when all have arrived.

A backward pass (`passes`) returns when every unit has landed, so clipping, loss scaling and logging find the gradients of all
ranks. Gradients are there to be added to, as everywhere in torch: a unit that landed and was not zeroed is sent once more with
what was added, each rank's share of it.

Parameters may be frozen, unfrozen or given to an optimizer later: before each forward pass the set is compared with that of
the last, and where it has changed, on all ranks alike, units and hooks are made anew (`rebuild`). The same happens once, after
the first backward pass, where it has brought gradients in another order than parameters were registered in.

Where nothing is left to decide (first come, first served, no limit on what is in flight, plain sums) ranks do not ask for
grants: see `grants.InTurn`. Which parameters no rank has used then travels with the gradients.
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
from autotune.runtime.codecs.protocol import SUM, Identity, Round
from autotune.runtime.codecs.sufficient_factors import Factors
from autotune.runtime.override import Hook
from autotune.runtime.reduce.bucketed import Sent, sent_over
from autotune.runtime.reduce.fusion_buffer import Stage, Unit, odd_rank
from autotune.runtime.reduce.late_watch import LateWatch
from autotune.runtime.reduce.make_buffers import (
    in_order,
    make_factors,
    make_units,
    optimized,
    roots_of,
    signature,
    trained_parameters,
)
from autotune.runtime.reduce.owed import collect, hand_over
from autotune.runtime.reduce.passes import Passes
from autotune.runtime.reduce.send_order import Grants, InTurn, out_of_step
from autotune.runtime.reduce.sender import Flight, Scheduler
from autotune.runtime.reduce.sparse_rows import SparseUnit
from autotune.runtime.tracked import raw
from autotune.runtime.transport.traced_group import Delivery, TracedGroup
from autotune.workloads.errors import SpecError, TrialTimeoutError
from autotune.workloads.plan import CommPlan, Plan
from autotune.workloads.plan.buckets import num_partitions

POSITIONS = 16
"""Positions in the script are told apart modulo this, so that float32 holds their sums over a thousand ranks exactly."""
_SLICE_S = 2.0
"""How often a rank that waits looks whether another has left."""
_LEFT_S = 4.0
"""How long gradients that a rank sent before it left may take to arrive."""


def _nothing(_amount: float) -> None:
    """The default of callbacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """How an engine is put to use."""

    weight: float | None = 1.0
    """What this rank's gradient counts: b_i/B, unless its loss is weighted already; None: not known yet."""
    calls_begin: bool = False
    """Every step begins with `begin`, on all ranks, and the loss is weighted: what is known to do so is spared a hook."""
    on_stall: Callable[[float], None] = _nothing
    """Called whenever a forward pass has waited for parameters, with the seconds."""
    on_rebuild: Callable[[float], None] = _nothing
    """Called with the floating-point operations that a gradient made of factors took beyond those of an ordinary backward pass."""
    timeout_s: float = 600.0
    """The longest wait for other ranks."""
    ranges: Ranges = field(default_factory=Ranges)
    """Tells a torch profiler what is done with each unit of gradients."""


class Exchange(Passes):
    """Exchanges the gradients of `model`, whose values are the same on all ranks, over `group` from the moment it is made, by
    all ranks together.
    """

    loss_scale = 1.0
    needs_backward = False
    stalled_s = 0.0

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        plan: Plan,
        group: dist.ProcessGroup,
        setting: Setting,
    ) -> None:
        self.model, self._plan, self._setting, self._group = model, plan, setting, group
        self._optimizers = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        if isinstance(group, TracedGroup):
            group.recording = False  # the scheduler notes what is in flight; to ask the group would wait for all of it
        super().__init__(setting.weight, group.size(), calls_begin=setting.calls_begin)
        self.batch_number = self._num_steps = self.num_loads = 0
        """Batches, steps and checkpoints so far: all ranks that send gradients must agree on them."""
        self._changing = threading.Lock()
        """For what more than one thread reads and changes of a unit: its stage and its options."""
        self._crosses = False
        """Whether a step ends before its gradients have arrived: `Engine` may turn it on."""
        self._order: list[int] = []
        self._is_maintained = False
        self._is_recording = False
        self._frozen_owed: dict[str, Tensor] = {}
        """Of parameters that do not train at present."""
        self._build(is_first=True)

    # -- what training calls -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget the gradients there are; every rank begins a step so, or none."""
        self._maintain()
        self._is_maintained = True
        self._pass += 1
        with raw():
            for unit in self.units:
                unit.zero(set_to_none=True)

    def finish(self) -> None:
        """No more gradients come in this pass; wait until all have landed."""
        if self._finished != self._pass:
            self._finish_pass()

    @property
    def waits_in_backward(self) -> bool:
        return not self._crosses

    @property
    def _position(self) -> int:
        return position_of(self.batch_number, self._num_steps, self.num_loads)

    def flush(self) -> None:
        """Parameters are up to date when a step ends."""

    def record(self, *, on: bool) -> None:
        """Note what is in flight from here on."""
        self._is_recording = self._scheduler.recording = on

    def sent(self) -> Sent:
        """What has landed since the last call, while recording."""
        deliveries = tuple(_delivery(flight) for flight in self._scheduler.take())
        return Sent(deliveries=deliveries, late_s=sent_over(self._group).late_s)

    def detach(self, error: BaseException | None = None) -> None:
        """Let go of model, optimizers and group. With an error, the other ranks' exchanges end with it."""
        try:
            if error is None and self._error is None:
                self._rest()
                self._show()
        finally:
            self._take_down(error)
            del self._group

    def owed(self) -> dict[str, Tensor]:
        """What lossy codecs have left out so far, over all ranks, by parameter; called by all ranks together."""
        self._rest()
        return self._frozen_owed | collect(self._flat_units(), self._names(), self._group)

    def owe(self, owed: dict[str, Tensor]) -> None:
        """Add this to the gradients that follow; called by all ranks together."""
        names = self._names()
        hand_over(self._flat_units(), names, owed, self._group.rank())
        self._frozen_owed = {name: values for name, values in owed.items() if name not in names.values()}

    def _flat_units(self) -> list[Unit]:
        return [unit for unit in self.units if not isinstance(unit, SparseUnit)]

    # -- making and changing -------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Units and hooks for what trains now; called by all ranks together. Gradients that were accumulated and not sent are
        sent first: a parameter that is frozen now still has its own.
        """
        if self._is_unsynced:
            self._finish_pass()
        self._rest()
        self._show()
        owed = self.owed()
        self._take_down(None)
        self._build(is_first=False)
        self.owe(owed)
        self._scheduler.recording = self._is_recording

    def _build(self, *, is_first: bool) -> None:
        self._trained = trained_parameters(self.model, self._optimizers)
        known = [*self.model.parameters(), *(p for optimizer in self._optimizers for p in optimized(optimizer))]
        self._known = list({id(p): p for p in known}.values())
        self._signature = self._signature_now()
        factors = make_factors(self.model, self._plan, self._make_factors, is_first=is_first)
        self._ordered = in_order(self._trained, self._order)
        self.units = make_units(self._ordered, self._plan, self._group, factors)
        self.buffer_bytes = sum(unit.codec.buffer_bytes(unit.flat) for unit in self.units)
        self._asks_nobody = _needs_no_grants(self._plan.comm, self.units)
        """Whether ranks post what they have in one order, without grants."""
        self._checks_steps = self._asks_nobody and all(
            unit.flat.dtype in (torch.float32, torch.float64) for unit in self.units
        )
        in_turn = InTurn(_nums_parts(self._plan.comm, self.units)) if self._asks_nobody else None
        make_grants = partial(_grants, self._plan.comm, len(self.units), self._group.size())
        self._scheduler = Scheduler(self._group, make_grants, self, in_turn)
        self._watch = LateWatch(lambda: self._scheduler.tell_late(self._num_steps))
        self._handles: list[Any] = [*self._hook_gradients(), *self._hook_models()]
        self._around_step = self._hook_steps()

    def _take_down(self, error: BaseException | None) -> None:
        for handle in (*self._handles, *self._around_step):
            handle.remove()
        self._accumulators.clear()
        for unit in self.units:
            if isinstance(unit.codec, Factors):
                unit.codec.detach()
        self._watch.close()
        self._scheduler.close(error)

    def _signature_now(self) -> tuple[object, ...]:
        with raw():
            return signature(self._known, self._optimizers)

    def _maintain(self) -> None:
        """Before the gradients of a pass: is everything still exchanged that trains, and in the order in which it comes?"""
        if self._signature_now() != self._signature:
            self._order, self._arrivals, self._have_arrived = [], {}, False
            self.rebuild()
        elif self._arrivals is not None and self._have_arrived:
            self._learn_order()

    def _learn_order(self) -> None:
        """Rank 0's order of the first backward pass holds for all."""
        self._rest()
        arrivals, self._arrivals = list(self._arrivals or {}), None
        order = torch.full((len(self._trained),), -1, dtype=torch.int64, device=self.units[0].flat.device)
        order[: len(arrivals)] = torch.tensor(arrivals, dtype=torch.int64)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([order], options).wait()
        self._order = [place for place in order.tolist() if place >= 0]
        if [one.name for one in in_order(self._trained, self._order)] != [one.name for one in self._ordered]:
            self.rebuild()

    # -- what the scheduler calls, from any thread ---------------------------------------------------------------------

    def landed(self, index: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        unit = self.units[index]
        if self._asks_nobody:
            self._check_step(unit)
            unused = unit.unmarked()
        elif (more := unit.codec.decode(received, unit.flat)) is not None:
            unit.round += 1
            self._scheduler.offer(index, unit.round, more, unused, position=unit.position)
            return
        with self._changing:
            unit.land(unused)
            options = unit.options
        if options is not None:
            self._update(unit, options)

    def failed(self, error: Exception) -> None:
        self._error = self._error or error

    def _update(self, unit: Unit, options: list[dict[str, Any]]) -> None:
        """An update of this unit was asked for, with these options, before it had landed."""
        raise NotImplementedError

    def _check_step(self, unit: Unit) -> None:
        if not self._checks_steps:
            return
        rank, size = self._group.rank(), self._group.size()
        if (odd := odd_rank(unit.checks, size, rank, unit.position)) is not None:
            raise SpecError(out_of_step(odd))

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, unit: Unit) -> None:
        missing = unit.close()
        unit.position = self._position
        unit.stage, unit.offered_in = Stage.OFFERED, self._pass
        self._scheduler.offer(unit.index, 0, self._first_round(unit, missing), missing, position=unit.position)

    def _all_sent(self) -> None:
        if not self._crosses:
            self._rest()
            self._show()

    def _first_round(self, unit: Unit, missing: Sequence[int]) -> Round:
        if self._asks_nobody:
            return Round(kind=SUM, tensors=(unit.marked(missing, self._group.rank(), unit.position),))
        return unit.codec.encode(unit.flat)

    def _make_factors(self, module: nn.Linear) -> Factors:
        return Factors(module, weight=lambda: self.weight or 0.0, on_rebuild=self._setting.on_rebuild)

    def _hook_models(self) -> list[Any]:
        hook = Hook(self._enter_model)
        return [root.register_forward_pre_hook(hook, prepend=True) for root in roots_of(self.model)]

    def _enter_model(self, _module: nn.Module, _inputs: Any) -> None:
        if self._is_maintained or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            self._is_maintained = False
        else:
            self._maintain()

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Until nothing is on its way."""
        self._wait(self.units)

    def _show(self) -> None:
        with raw():
            for unit in self.units:
                unit.show()

    def _wait(self, units: Sequence[Unit]) -> float:
        """Until nothing of these is on its way; how long that took."""
        begun_s = time.perf_counter()
        self._watch.begin()
        while not self._arrived(units, self._setting.timeout_s if self._group.size() == 1 else _SLICE_S):
            waited_s = time.perf_counter() - begun_s
            if waited_s > _LEFT_S and (left := self._scheduler.left()):
                raise SpecError(self._without(left[0]))
            if waited_s > self._setting.timeout_s:
                raise TrialTimeoutError(f"gradients did not arrive within {self._setting.timeout_s:g} s")
        self._watch.end()
        return time.perf_counter() - begun_s

    def _arrived(self, units: Sequence[Unit], timeout_s: float) -> bool:
        limit_s = min(timeout_s, self._setting.timeout_s)
        arrived = self._scheduler.wait_until(
            lambda: self._error is not None or all(unit.is_at_rest for unit in units), limit_s
        )
        if self._error is not None and (left := self._scheduler.left()):
            raise SpecError(self._without(left[0])) from self._error
        if self._error is not None:
            raise self._error
        return arrived

    def _without(self, rank: int) -> str:
        return (
            f"rank {rank} has ended its training while this rank waits for its gradients of step {self._num_steps}: every "
            "rank must run the same number of backward passes"
        )

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
        """Gradients that were accumulated inside no_sync() only are exchanged now, if they have not been."""
        if not self._is_unsynced:
            return
        with raw():
            if any(unit.is_edited for unit in self.units if unit.stage is Stage.FILLING):
                raise SpecError(
                    "gradients were changed (clipped?) after backward passes inside no_sync() only: they were this rank's own; "
                    "run the last backward pass before step() outside no_sync()"
                )
        self._finish_pass()

    def _after_step(self) -> None:
        self._num_steps += 1


def position_of(num_batches: int, num_steps: int, num_loads: int) -> int:
    """Of a rank in its script. A rank that skips a batch, a step or both is at another than the rest."""
    return (2 * num_batches + num_steps + 5 * num_loads) % POSITIONS


def _grants(comm: CommPlan, num_units: int, num_ranks: int) -> Grants:
    """Units are numbered as gradients come: the higher the number, the more urgent."""
    is_scheduled = comm.reducer == "scheduled"
    return Grants(
        num_ranks=num_ranks,
        partition_bytes=comm.partition_bytes if is_scheduled else None,
        credit_bytes=comm.credit_bytes if is_scheduled else None,
        priorities=range(num_units, 0, -1) if is_scheduled and comm.priority == "layer" else None,
    )


def _needs_no_grants(comm: CommPlan, units: Sequence[Unit]) -> bool:
    """Whether nothing is left to decide: no order but that of the units, and nothing that has to wait."""
    is_unlimited = comm.reducer != "scheduled" or (
        comm.priority == "fifo" and comm.credit_bytes >= sum(unit.whole.nbytes for unit in units)
    )
    return is_unlimited and all(isinstance(unit.codec, Identity) for unit in units)


def _nums_parts(comm: CommPlan, units: Sequence[Unit]) -> list[int]:
    if comm.reducer != "scheduled":
        return [1] * len(units)
    return [num_partitions(comm.partition_bytes, unit.flat.nbytes, unit.flat.numel()) for unit in units]


def _delivery(flight: Flight) -> Delivery:
    again = f" round {flight.round}" if flight.round else ""
    return Delivery(
        name=f"unit {flight.unit}{again} part {flight.part}",
        num_bytes=flight.num_bytes,
        ready_s=flight.offered_s,
        posted_s=flight.posted_s,
        end_s=flight.landed_s,
    )
