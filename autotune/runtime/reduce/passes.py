"""Backward passes of a script, as an exchange of gradients sees them.

A hook before a parameter's gradient is accumulated weighs it by this rank's share of the batch; a hook after it notes that it
is there, and a unit whose last gradient is there is sent. Every pass outside `no_sync` sends every unit once, whatever
gradients it brings, so all ranks send the same units in the same number. A pass that has failed is completed when the next
begins, and one that runs inside another (reentrant checkpoints) divides that one into several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autotune.runtime.codecs.sufficient_factors import Factors
from autotune.runtime.reduce.batch_weights import BatchWeights
from autotune.runtime.reduce.fusion_buffer import Stage, Unit
from autotune.runtime.reduce.make_buffers import Trained
from autotune.runtime.tracked import accumulator_of, raw
from autotune.workloads.errors import SpecError


class Passes(BatchWeights):
    """Counts backward passes and fills units. What happens to a full unit, and waiting, is for `Exchange`."""

    units: list[Unit]
    _trained: list[Trained]

    _crosses: bool

    def __init__(self, weight: float | None, num_ranks: int, *, calls_begin: bool) -> None:
        super().__init__(weight)
        self._calls_begin = calls_begin
        self._num_ranks = num_ranks
        self._error: Exception | None = None
        self._syncs = True
        self._task = -1
        """Autograd's number of the backward pass that is running."""
        self._pass = 1
        """Counts backward passes: a unit is sent once in each."""
        self._finished = 0
        """The last of them whose units have all been sent."""
        self._is_unsynced = False
        """Whether passes have accumulated gradients that were not sent."""
        self._arrivals: dict[int, None] | None = {}
        """Places of gradients in the order of the first backward pass; None once that has been used."""
        self._have_arrived = False
        self._uncounted: set[tuple[int, int]] = set()
        """Gradients of a pass that counts nothing, for parameters that have none."""
        self._accumulators: list[Any] = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the first one after it exchanges what all of them left."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    @property
    def is_between_steps(self) -> bool:
        """Whether no gradients have been accumulated that were not sent: none would be lost if this exchange went away."""
        return not self._is_unsynced

    def _send(self, unit: Unit) -> None:
        raise NotImplementedError

    def _wait(self, units: Sequence[Unit]) -> float:
        raise NotImplementedError

    def _all_sent(self) -> None:
        raise NotImplementedError

    def _hook_gradients(self) -> list[Any]:
        """On autograd's own nodes: `torch.autograd.grad` accumulates nothing and is left alone. Where every step calls `begin`
        gradients begin from nothing and weigh 1, so that nothing is to be done before they are accumulated.
        """
        places = {id(one.parameter): place for place, one in enumerate(self._trained)}
        handles = []
        with raw():
            for unit in self.units:
                for place, parameter in enumerate(unit.parameters):
                    if not self._calls_begin:
                        node = accumulator_of(parameter)
                        self._accumulators.append(node)
                        handles.append(node.register_prehook(self._before_accumulation(unit, place)))
                    after = self._after_accumulation(unit, place, places[id(parameter)])
                    handles.append(parameter.register_post_accumulate_grad_hook(after))
        return handles

    def _before_accumulation(self, unit: Unit, place: int) -> Callable[[tuple[Tensor | None, ...]], Any]:
        current_task = torch._C._current_graph_task_id

        def hook(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, ...] | None:
            if current_task() != self._task:
                self._begin_pass(current_task())
            if unit.entered_in != self._pass:
                self._enter(unit)
            gradient, weight = gradients[0], self.weight
            if gradient is None:
                return None
            self._check(unit, place, gradient)
            if weight == unit.scale:
                return None
            assert weight is not None
            if weight == 0.0 and unit.parameters[place].grad is None:
                self._uncounted.add((unit.index, place))
            weighed = unit.weigh(gradient, weight)
            return None if weighed is None else (weighed,)

        return hook

    def _after_accumulation(self, unit: Unit, place: int, among_all: int) -> Callable[[Tensor], None]:
        current_task, calls_begin = torch._C._current_graph_task_id, self._calls_begin

        def hook(parameter: Tensor) -> None:
            if calls_begin:
                if current_task() != self._task:
                    self._begin_pass(current_task())
                if unit.entered_in != self._pass or not self._have_arrived:
                    self._enter_late(unit, place, parameter)
            if self._crosses:
                with raw():
                    self._accumulated(unit, place, among_all)
            else:
                self._accumulated(unit, place, among_all)

        return hook

    def _accumulated(self, unit: Unit, place: int, among_all: int) -> None:
        if self._uncounted and (unit.index, place) in self._uncounted:
            self._uncounted.discard((unit.index, place))
            unit.parameters[place].grad = None
        unit.take(place)
        if self._arrivals is not None and not self._have_arrived:
            self._arrivals[among_all] = None
        if unit.is_complete(place) and self._syncs:
            self._send(unit)

    def _enter_late(self, unit: Unit, place: int, parameter: Tensor) -> None:
        """The first gradient of a pass has been accumulated, in a tensor of its own."""
        with raw():
            gradient = parameter.grad
            if unit.entered_in != self._pass:
                parameter.grad = None  # it is no part of what the unit held before
                self._enter(unit)
                parameter.grad = gradient
            if gradient is not None and gradient is not unit.views[place]:
                self._check(unit, place, gradient)

    def _check(self, unit: Unit, place: int, gradient: Tensor) -> None:
        """Refuse what cannot be exchanged."""
        is_late = unit.stage is not Stage.FILLING
        if is_late or gradient.requires_grad or not (unit.takes_dense or unit.takes_sparse):
            raise SpecError(self._unfit(unit, place, gradient))
        if not unit.takes_sparse and gradient.is_sparse:
            raise SpecError(
                f"{self._name_of(unit, place)} has a sparse gradient but its module does not say sparse=True: use an "
                "nn.Embedding or nn.EmbeddingBag with sparse=True for it"
            )

    def _begin_pass(self, task: int) -> None:
        if self._error is not None:
            raise self._error
        if self._task < 0:
            self.begin_pass()
        if self._task >= 0 and self._syncs:
            self._finish_pass()  # it has failed, or this one runs inside it: every pass sends every unit
        self._task = task
        self._pass += 1
        self._uncounted.clear()
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._end_pass, task))

    def _end_pass(self, task: int) -> None:
        if self._task != task:
            return  # it has been counted as several
        self._task = -1
        with raw():
            if self._syncs:
                self._finish_pass()
                return
            self._is_unsynced = True
            for unit in self.units:
                if isinstance(unit.codec, Factors) and unit.entered_in == self._pass:
                    unit.codec.show(unit)
                unit.note()

    def _enter(self, unit: Unit) -> None:
        """The first gradient of a pass comes, or the pass ends without one."""
        if not unit.is_at_rest:
            self._wait([unit])
        with raw():
            if unit.stage is Stage.LANDED:
                unit.open(self._num_ranks)
            unit.enter(self._pass)

    def _finish_pass(self) -> None:
        """Send what this pass has not sent, also where no gradient came: other ranks may have one."""
        with raw():
            for unit in self.units:
                if unit.offered_in != self._pass:
                    if unit.entered_in != self._pass:
                        self._enter(unit)
                    self._send(unit)
        self._finished, self._is_unsynced, self._have_arrived = self._pass, False, True
        self._all_sent()

    def _unfit(self, unit: Unit, place: int, gradient: Tensor) -> str:
        name = self._name_of(unit, place)
        if gradient.requires_grad:
            return (
                f"the gradient of {name} has a graph of its own (backward(create_graph=True)), which an exchange would cut: "
                "use torch.autograd.grad(..., create_graph=True), whose result is this rank's own"
            )
        if unit.stage is Stage.FILLING:
            return (
                f"{name} has a gradient beside that of its Linear layer, so its factors do not make it up: take the layer "
                "out of the plan's factors"
            )
        return f"{name} received a gradient twice in one backward pass, after the first had been sent"

    def _name_of(self, unit: Unit, place: int) -> str:
        return self._names()[id(unit.parameters[place])]

    def _names(self) -> dict[int, str]:
        return {id(one.parameter): one.name for one in self._trained}
