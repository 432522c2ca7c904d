"""Hooks on a script's backward passes that fill fusion buffers and send the full ones.

A hook before a gradient is accumulated multiplies it by the weight of the batch. A hook after it counts the gradient,
and a buffer is sent after its last gradient. Every pass outside `no_sync` sends every buffer once, whichever gradients
it produces, so all ranks send the same buffers equally often. A pass that has failed is completed when the next one
begins. A pass that runs inside another one (reentrant checkpoints) divides that one into several.
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
from autotune.runtime.reduce.fusion_buffer import FusionBuffer, Stage
from autotune.runtime.reduce.make_buffers import Trained
from autotune.runtime.tracked import accumulator_of, raw
from autotune.workloads.errors import SpecError


class BackwardPasses(BatchWeights):
    """Counts backward passes and fills buffers. `ScheduledReducer` sends a full buffer and waits.

    Threads: everything here runs in the thread of the script or, inside a backward pass, in autograd's.
    """

    buffers: list[FusionBuffer]
    _trained: list[Trained]
    _overlaps_steps: bool

    def __init__(self, weight: float | None, num_ranks: int, *, calls_begin: bool) -> None:
        super().__init__(weight)
        self._calls_begin = calls_begin
        self._num_ranks = num_ranks
        self._error: Exception | None = None
        self._syncs = True
        self._task = -1
        """Autograd's id of the running backward pass; -1: none is running."""
        self._pass = 1
        """Counts backward passes: a buffer is sent once in each."""
        self._finished = 0
        """The last pass whose buffers have all been sent."""
        self._is_unsynced = False
        """Whether passes have accumulated gradients that were not sent."""
        self._arrivals: dict[int, None] | None = {}
        """Places of gradients in the order of the first backward pass; None once that order is in use."""
        self._have_arrived = False
        self._uncounted: set[tuple[int, int]] = set()
        """Gradients of a pass of weight 0, for parameters that have none."""
        self._accumulators: list[Any] = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the first pass after it exchanges the sum."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    @property
    def is_between_steps(self) -> bool:
        """Whether every accumulated gradient has been sent, so that none is lost if this reducer is replaced now."""
        return not self._is_unsynced

    def _send(self, buffer: FusionBuffer) -> None:
        raise NotImplementedError

    def _wait(self, buffers: Sequence[FusionBuffer]) -> float:
        raise NotImplementedError

    def _all_sent(self) -> None:
        raise NotImplementedError

    def _hook_gradients(self) -> list[Any]:
        """On autograd's accumulation nodes, which `torch.autograd.grad` does not run. Where every step calls `begin`,
        gradients start from zero with weight 1, so no hook before the accumulation is needed.
        """
        places = {id(one.parameter): place for place, one in enumerate(self._trained)}
        handles = []
        with raw():
            for buffer in self.buffers:
                for place, parameter in enumerate(buffer.parameters):
                    if not self._calls_begin:
                        node = accumulator_of(parameter)
                        self._accumulators.append(node)
                        handles.append(node.register_prehook(self._before_accumulation(buffer, place)))
                    after = self._after_accumulation(buffer, place, places[id(parameter)])
                    handles.append(parameter.register_post_accumulate_grad_hook(after))
        return handles

    def _before_accumulation(self, buffer: FusionBuffer, place: int) -> Callable[[tuple[Tensor | None, ...]], Any]:
        current_task = torch._C._current_graph_task_id

        def hook(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor, ...] | None:
            if current_task() != self._task:
                self._begin_pass(current_task())
            if buffer.entered_in != self._pass:
                self._enter(buffer)
            gradient, weight = gradients[0], self.weight
            if gradient is None:
                return None
            self._check(buffer, place, gradient)
            if weight == buffer.scale:
                return None
            assert weight is not None
            if weight == 0.0 and buffer.parameters[place].grad is None:
                self._uncounted.add((buffer.index, place))
            weighed = buffer.weigh(gradient, weight)
            return None if weighed is None else (weighed,)

        return hook

    def _after_accumulation(self, buffer: FusionBuffer, place: int, among_all: int) -> Callable[[Tensor], None]:
        current_task, calls_begin = torch._C._current_graph_task_id, self._calls_begin

        def hook(parameter: Tensor) -> None:
            if calls_begin:
                if current_task() != self._task:
                    self._begin_pass(current_task())
                if buffer.entered_in != self._pass or not self._have_arrived:
                    self._enter_late(buffer, place, parameter)
            if self._overlaps_steps:
                with raw():
                    self._accumulated(buffer, place, among_all)
            else:
                self._accumulated(buffer, place, among_all)

        return hook

    def _accumulated(self, buffer: FusionBuffer, place: int, among_all: int) -> None:
        if self._uncounted and (buffer.index, place) in self._uncounted:
            self._uncounted.discard((buffer.index, place))
            buffer.parameters[place].grad = None
        buffer.take(place)
        if self._arrivals is not None and not self._have_arrived:
            self._arrivals[among_all] = None
        if buffer.is_filled_by(place) and self._syncs:
            self._send(buffer)

    def _enter_late(self, buffer: FusionBuffer, place: int, parameter: Tensor) -> None:
        """As `_enter`, after a pass has accumulated its first gradient, in a tensor that autograd has allocated."""
        with raw():
            gradient = parameter.grad
            if buffer.entered_in != self._pass:
                parameter.grad = None  # `_enter` must not see it as a gradient of earlier passes
                self._enter(buffer)
                parameter.grad = gradient
            if gradient is not None and gradient is not buffer.views[place]:
                self._check(buffer, place, gradient)

    def _check(self, buffer: FusionBuffer, place: int, gradient: Tensor) -> None:
        """Refuse a gradient that cannot be exchanged."""
        is_late = buffer.stage is not Stage.FILLING
        if is_late or gradient.requires_grad or not (buffer.takes_dense or buffer.takes_sparse):
            raise SpecError(self._unfit(buffer, place, gradient))
        if not buffer.takes_sparse and gradient.is_sparse:
            raise SpecError(
                f"{self._name_of(buffer, place)} has a sparse gradient but its module is not declared with "
                "sparse=True: use an nn.Embedding or nn.EmbeddingBag with sparse=True for it"
            )

    def _begin_pass(self, task: int) -> None:
        if self._error is not None:
            raise self._error
        if self._task < 0:
            self.begin_pass()
        if self._task >= 0 and self._syncs:
            self._finish_pass()  # that pass has failed, or this one runs inside it: every pass sends every buffer
        self._task = task
        self._pass += 1
        self._uncounted.clear()
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._end_pass, task))

    def _end_pass(self, task: int) -> None:
        if self._task != task:
            return  # a pass inside it has ended it already
        self._task = -1
        with raw():
            if self._syncs:
                self._finish_pass()
                return
            self._is_unsynced = True
            for buffer in self.buffers:
                if isinstance(buffer.codec, Factors) and buffer.entered_in == self._pass:
                    buffer.codec.show(buffer)
                buffer.note()

    def _enter(self, buffer: FusionBuffer) -> None:
        """Prepare a buffer for its first gradient of a pass, or for the end of a pass without one."""
        if not buffer.is_idle:
            self._wait([buffer])
        buffer.written.wait()
        with raw():
            if buffer.stage is Stage.COMPLETED:
                buffer.open(self._num_ranks)
            buffer.enter(self._pass)

    def _finish_pass(self) -> None:
        """Send every buffer that this pass has not sent, also one without gradients: other ranks may have some."""
        with raw():
            for buffer in self.buffers:
                if buffer.sent_in != self._pass:
                    if buffer.entered_in != self._pass:
                        self._enter(buffer)
                    self._send(buffer)
        self._finished, self._is_unsynced, self._have_arrived = self._pass, False, True
        self._all_sent()

    def _unfit(self, buffer: FusionBuffer, place: int, gradient: Tensor) -> str:
        name = self._name_of(buffer, place)
        if gradient.requires_grad:
            return (
                f"the gradient of {name} has a graph of its own (backward(create_graph=True)), which an exchange would cut: "
                "use torch.autograd.grad(..., create_graph=True), whose result is this rank's own"
            )
        if buffer.stage is Stage.FILLING:
            return (
                f"{name} has a gradient beside that of its Linear layer, so its sufficient factors do not make it up: "
                "take the layer out of the plan's factors"
            )
        return f"{name} received a gradient twice in one backward pass, after the first had been sent"

    def _name_of(self, buffer: FusionBuffer, place: int) -> str:
        return self._names()[id(buffer.parameters[place])]

    def _names(self) -> dict[int, str]:
        return {id(one.parameter): one.name for one in self._trained}
