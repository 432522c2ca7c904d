"""Gradients of a model exchanged by a schedule, and a step that ends when all have arrived.

Hooks on the parameters tell when a gradient is there; a unit whose last gradient is there is offered to the scheduler. A
backward pass returns when every unit has landed, so whoever clips, scales or looks at gradients finds those of all ranks.
Gradients are there to be added to, as everywhere in torch: a unit that landed and was not zeroed is sent once more with what
was added, each rank's share of it, and the shares make up the whole.

Where nothing is left to decide (first come, first served, no limit on what is under way, plain sums) ranks do not ask for
grants: see `grants.InTurn`. Which parameters no rank has used then travels with the gradients.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.runtime.comm.codec import SUM, Identity, Round
from autotune.runtime.comm.factors import Factors, factored_layers
from autotune.runtime.comm.factory import UnitShape, make_codec
from autotune.runtime.comm.grants import Grants, InTurn
from autotune.runtime.comm.scheduler import Flight, Scheduler
from autotune.runtime.comm.unit import Stage, Unit
from autotune.runtime.reducer import Sent, sent_over
from autotune.runtime.traced_group import Delivery, TracedGroup
from profilers.ranges import Ranges
from workloads.buckets import num_partitions, unit_indices
from workloads.capture import owner_kind
from workloads.errors import SpecError, TrialTimeoutError
from workloads.plan import CommPlan, Plan


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


class Exchange:
    """Exchanges the gradients of `model`, whose values are the same on all ranks, over `group` from the moment it is made, by
    all ranks together.

    Between its steps the model's gradients belong to it.
    """

    loss_scale = 1.0
    needs_backward = False
    stalled_s = 0.0

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, plan: Plan, group: dist.ProcessGroup, setting: Setting
    ) -> None:
        self.model, self._optimizer, self._setting, self._group = model, optimizer, setting, group
        if isinstance(group, TracedGroup):
            group.recording = False  # the scheduler notes what flies; to ask the group would wait for all of it
        self.weight = setting.weight
        """What this rank's gradient counts, in the steps that follow."""
        self.units = _make_units(model, plan, group, self._make_factors)
        self.buffer_bytes = sum(unit.codec.buffer_bytes(unit.flat) for unit in self.units)
        self._changing = threading.Lock()
        """For what more than one thread reads and changes of a unit: its stage and its options."""
        self._error: Exception | None = None
        self._syncs = True
        self._in_backward = False
        self._pass = 1
        """Counts backward passes, and steps: a unit is offered once in each."""
        self._finished = 0
        """The last of them that was waited for."""
        self._crosses = False
        """Whether a step ends before its gradients have arrived: `Engine` may turn it on."""
        self._handles: list[Any] = self._hook_gradients()
        self._around_step = self._hook_step()
        self._asks_nobody = _needs_no_grants(plan.comm, self.units)
        """Whether ranks post what they have in one order, without grants."""
        in_turn = InTurn(_nums_parts(plan.comm, self.units)) if self._asks_nobody else None
        make_grants = partial(_grants, plan.comm, len(self.units), group.size())
        self._scheduler = Scheduler(group, make_grants, self, in_turn)

    def begin(self) -> None:
        """Forget the gradients there are, where none is under way."""
        self._pass += 1
        if not self._crosses:
            for unit in self.units:
                unit.start()
                unit.point()

    def finish(self) -> None:
        """No more gradients come in this step; wait until all have landed."""
        self._offer_all()
        if self._finished != self._pass:
            self._finished = self._pass
            self._wait(self.units, Stage.LANDED)
            for unit in self.units:
                unit.hide_unused()

    @property
    def waits_in_backward(self) -> bool:
        return not self._crosses

    def settle(self) -> None:
        """Parameters are up to date when a step ends."""

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
        """What has landed since the last call, while recording."""
        deliveries = tuple(_delivery(flight) for flight in self._scheduler.take())
        return Sent(deliveries=deliveries, late_s=sent_over(self._group).late_s)

    def detach(self, error: BaseException | None = None) -> None:
        """Let go of model, optimizer and group. With an error, the other ranks' exchanges end with it."""
        for handle in (*self._handles, *self._around_step):
            handle.remove()
        for unit in self.units:
            if isinstance(unit.codec, Factors):
                unit.codec.detach()
        self._scheduler.close(error)
        del self._group

    # -- what the scheduler calls, from any thread ---------------------------------------------------------------------

    def landed(self, index: int, received: Sequence[Tensor], unused: Sequence[int]) -> None:
        unit = self.units[index]
        if self._asks_nobody:
            unused = unit.unmarked()
        elif (more := unit.codec.decode(received, unit.flat)) is not None:
            unit.round += 1
            self._scheduler.offer(index, unit.round, more, unused)
            return
        with self._changing:
            unit.land(unused)
            options = unit.options
        if options is not None:
            self._update(unit, options)

    def failed(self, error: Exception) -> None:
        self._error = self._error or error

    def _update(self, unit: Unit, options: list[dict[str, Any]]) -> None:
        """Somebody has asked for this unit's update, with these options, before it had landed."""
        raise NotImplementedError

    # -- gradients -----------------------------------------------------------------------------------------------------

    def _hook_gradients(self) -> list[Any]:
        return [
            parameter.register_post_accumulate_grad_hook(self._accumulated(unit, place))
            for unit in self.units
            for place, parameter in enumerate(unit.parameters)
        ]

    def _accumulated(self, unit: Unit, place: int) -> Callable[[Tensor], None]:
        sends_factors = isinstance(unit.codec, Factors)

        def hook(_parameter: Tensor) -> None:
            if not self._in_backward:
                self._in_backward = True
                torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
                self._pass += 1
            if unit.stage is Stage.LANDED and unit.offered_in != self._pass and not self._crosses:
                unit.reopen()
            if unit.stage is not Stage.FILLING:
                raise RuntimeError(self._too_late(unit, place))
            if sends_factors and not unit.has_traveled and unit.is_written(place):
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

    def _offer_all(self) -> None:
        """What has not been offered in this pass, also what no gradient came for: other ranks may have one."""
        for unit in self.units:
            if unit.offered_in != self._pass:
                if unit.options is not None:
                    self._wait([unit], Stage.FILLING)
                elif unit.stage is not Stage.FILLING:
                    self._wait([unit], Stage.LANDED)
                    unit.reopen()
                self._offer(unit)

    def _offer(self, unit: Unit) -> None:
        missing = unit.close()
        if self.weight != 1.0 and not isinstance(unit.codec, Factors):
            unit.flat.mul_(self.weight)
        unit.stage, unit.offered_in = Stage.OFFERED, self._pass
        self._scheduler.offer(unit.index, 0, self._first_round(unit, missing), missing)

    def _first_round(self, unit: Unit, missing: Sequence[int]) -> Round:
        if self._asks_nobody:
            return Round(kind=SUM, tensors=(unit.marked(missing),))
        return unit.codec.encode(unit.flat)

    def _make_factors(self, module: nn.Linear) -> Factors:
        return Factors(module, weight=lambda: self.weight, on_rebuild=self._setting.on_rebuild)

    def _end_backward(self) -> None:
        self._in_backward = False
        if self._syncs and not self._crosses:
            self.finish()

    def _wait(self, units: Sequence[Unit], stage: Stage) -> float:
        """Until all of them are there; how long that took."""
        begun_s = time.perf_counter()
        arrived = self._scheduler.wait_until(
            lambda: self._error is not None or all(unit.stage is stage for unit in units), self._setting.timeout_s
        )
        if self._error is not None:
            raise self._error
        if not arrived:
            raise TrialTimeoutError(f"gradients did not arrive within {self._setting.timeout_s:g} s")
        return time.perf_counter() - begun_s

    # -- around the optimizer's step -----------------------------------------------------------------------------------

    def _hook_step(self) -> list[Any]:
        return [
            self._optimizer.register_step_pre_hook(lambda *_: self._before_step()),
            self._optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]

    def _before_step(self) -> None:
        self.finish()

    def _after_step(self) -> None:
        self._pass += 1


def _grants(comm: CommPlan, num_units: int, num_ranks: int) -> Grants:
    """Units are numbered from the model's last parameters to its first: the higher the number, the more urgent."""
    return Grants(
        num_ranks=num_ranks,
        partition_bytes=comm.partition_bytes,
        credit_bytes=comm.credit_bytes,
        priorities=range(num_units, 0, -1) if comm.priority == "layer" else None,
    )


def _needs_no_grants(comm: CommPlan, units: Sequence[Unit]) -> bool:
    """Whether nothing is left to decide: no order but that of the units, and nothing that has to wait."""
    is_unlimited = comm.credit_bytes >= sum(unit.whole.nbytes for unit in units)
    return comm.priority == "fifo" and is_unlimited and all(isinstance(unit.codec, Identity) for unit in units)


def _nums_parts(comm: CommPlan, units: Sequence[Unit]) -> list[int]:
    return [num_partitions(comm.partition_bytes, unit.flat.nbytes, unit.flat.numel()) for unit in units]


def _make_units(
    model: nn.Module, plan: Plan, group: dist.ProcessGroup, make_factors: Callable[[nn.Linear], Factors]
) -> list[Unit]:
    """Parameters from last to first, fused up to a partition; layers that send factors alone."""
    factors = factored_layers(model, plan.compression.factors, make_factors)
    trained = [p for p in reversed(list(model.parameters())) if p.requires_grad]
    kinds = {id(p): owner_kind(model, path) for path, p in model.named_parameters()}
    plan.compression.check_kinds(kinds[id(p)] for p in trained)
    ways = [plan.compression.for_kind(kinds[id(p)]) for p in trained]
    cut = unit_indices(
        plan.comm.partition_bytes,
        [p.numel() * p.element_size() for p in trained],
        kinds=[(p.dtype, p.device, way.codec) for p, way in zip(trained, ways, strict=True)],
        layers=[factors.get(id(p)) for p in trained],
    )
    units = []
    for index, places in enumerate(cut):
        parameters = [trained[place] for place in places]
        if (layer := factors.get(id(parameters[0]))) is not None:
            units.append(Unit(index, layer.parameters, layer))
        else:
            codec = make_codec(ways[places[0]], UnitShape.of(parameters, group))
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
