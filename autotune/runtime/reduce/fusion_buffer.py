"""A fusion buffer: gradients that are sent and applied together, side by side in one tensor.

`parameter.grad` says whether a parameter has a gradient, as everywhere in torch: None, or a tensor that further
backward passes add to. A tensor that autograd allocates is copied to the parameter's place in the buffer.

The weight of a backward pass is this rank's share of its batch (`weigh`). The buffer keeps one scale, that of the first
pass since it was empty. Gradients of passes with another weight are multiplied by the ratio before they are
accumulated.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autotune.runtime.codecs.protocol import Codec
from autotune.runtime.codecs.sufficient_factors import Factors
from autotune.runtime.device import NO_MARK, Mark, Stamp
from autotune.runtime.reduce.step_position import CHECKS, checks_of

_ALIGNED = 64
"""The length of a buffer is a multiple of so many elements, so that its partitions begin at aligned addresses."""


class FlatGradients:
    """The gradients of some parameters in one tensor of real numbers."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_more: int = 0) -> None:
        """`num_more`: elements behind the gradients."""
        self.parameters = list(parameters)
        first, sizes = self.parameters[0], [_num_reals(p) for p in parameters]
        num_more += -(sum(sizes) + num_more) % _ALIGNED if num_more else 0
        self.whole = torch.zeros(sum(sizes) + num_more, dtype=first.dtype.to_real(), device=first.device)
        self.flat, self.more = self.whole[: sum(sizes)], self.whole[sum(sizes) :]
        self.views = [_view_as(v, p) for p, v in zip(parameters, self.flat.split(sizes), strict=True)]
        self.carried: Tensor | None = None
        """What the codec before this one owed: added to the next gradient that is sent."""
        self.is_carrying = False
        """Whether any rank has something to add."""

    def add_carried(self) -> bool:
        """Add `carried` to the gradients; whether any rank has added something."""
        if self.carried is not None:
            self.flat.add_(self.carried)
        was_carrying, self.carried, self.is_carrying = self.is_carrying, None, False
        return was_carrying

    def point(self) -> None:
        """Let `parameter.grad` be the view of this tensor for every parameter."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


def _num_reals(parameter: Tensor) -> int:
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _view_as(values: Tensor, parameter: Tensor) -> Tensor:
    if parameter.is_complex():
        return torch.view_as_complex(values.view(*parameter.shape, 2))
    return values.view(parameter.shape)


class Stage(enum.Enum):
    """The stage of a buffer's exchange."""

    FILLING = enum.auto()
    """Backward passes accumulate this rank's gradients."""
    IN_FLIGHT = enum.auto()
    """The gradients are ready or being sent."""
    COMPLETED = enum.auto()
    """The buffer holds the sum over all ranks, or nothing."""


class FusionBuffer(FlatGradients):
    """Gradients of some parameters, their codec, and the state of their exchange.

    Threads: other threads complete the exchange and the update. They change `stage`, `unused` and `options` under the
    reducer's lock, and `flat` and `round` while the buffer is in flight. Everything else belongs to the script's thread.
    On an accelerator they do so in streams of their own: who reads gradients or parameters waits for `written` first.
    """

    takes_sparse = False

    def __init__(
        self, index: int, parameters: Sequence[nn.Parameter], codec: Codec, optimizer_index: int | None = None
    ) -> None:
        super().__init__(parameters, len(parameters) + CHECKS)
        self.index, self.codec = index, codec
        self.optimizer_index = optimizer_index
        """The index of the optimizer that updates it; None: no optimizer of the job does."""
        self.takes_dense = not isinstance(codec, Factors)
        self.stage = Stage.COMPLETED
        self.sent_in = self.entered_in = 0
        """The last backward pass in which it was sent, and in which a gradient was accumulated."""
        self.round = self.position = 0
        """The round of the exchange; the position of this rank in the script when it was sent."""
        self.scale: float | None = None
        """The factor of the gradients when they are sent; None while there are none."""
        self.unused: frozenset[int] = frozenset()
        """Once completed: parameters, by place, that have a gradient on no rank."""
        self.options: list[dict[str, Any]] | None = None
        """The optimizer's options for the update that waits for this buffer to complete; None: no update waits."""
        self.arrived: Stamp | None = None
        """When the last exchange was over, before any update."""
        self.written: Mark = NO_MARK
        """Where a stream has written the completed gradients and, after an update, the parameters."""
        self.requested: Mark = NO_MARK
        """Where the script's stream was when it asked for the update: what reads the old parameters is before it."""
        self.is_shown = True
        """Whether `parameter.grad` is the completed result."""
        self.is_applied = True
        """Whether an optimizer's step has been called since it was sent."""
        self._dropped: set[int] = set()
        self._is_zeroed = False
        self._missing: set[int] = set()
        self._versions: list[int] = []
        self._has_gaps = True
        """Whether some parameter may have no gradient."""

    # -- a backward pass ------------------------------------------------------------------------------------------------

    def open(self, num_ranks: int) -> None:
        """Begin to fill: gradients are added to the completed result, of which each rank then sends its share."""
        self.show()
        held = [place for place, parameter in enumerate(self.parameters) if parameter.grad is not None]
        for place in held:
            self.take(place)
        self.scale = 1.0 / num_ranks if held else None
        self.unused, self.round, self.stage = frozenset(), 0, Stage.FILLING

    def enter(self, number: int) -> None:
        """Backward pass `number` begins to fill it."""
        self.entered_in, self._has_gaps = number, False
        self._missing = set(range(len(self.parameters)))

    def weigh(self, gradient: Tensor, weight: float) -> Tensor | None:
        """The gradient times the pass's weight over the buffer's scale; None where that is the gradient itself."""
        if weight == 0.0:
            return torch.zeros_like(gradient)
        if self.scale is None:
            self.scale = weight
        return None if weight == self.scale else gradient * (weight / self.scale)

    def take(self, place: int) -> None:
        """Copy a gradient that autograd, or the script, has allocated elsewhere."""
        parameter, view = self.parameters[place], self.views[place]
        gradient = parameter.grad
        if gradient is None:
            self._has_gaps = True
        elif gradient is not view:
            view.copy_(gradient)
            parameter.grad = view

    def is_filled_by(self, place: int) -> bool:
        """Note that this pass has accumulated the gradient at `place`; whether that was its last one."""
        self._missing.discard(place)
        return not self._missing

    def note(self) -> None:
        """Remember the gradients at the end of a pass that does not send them."""
        self._versions = [view._version for view in self.views]

    @property
    def is_edited(self) -> bool:
        """Whether the script has changed the gradients since `note`, other than to discard them."""
        return any(
            gradient is not None and (gradient is not view or view._version != version) and bool(view.any())
            for gradient, view, version in zip(
                (p.grad for p in self.parameters), self.views, self._versions, strict=False
            )
        )

    # -- the exchange ---------------------------------------------------------------------------------------------------

    def close(self) -> list[int]:
        """End filling; the places of parameters without a gradient."""
        comes_as_rows = not self.takes_dense and isinstance(self.codec, Factors) and self.codec.close(self)
        missing = self._fill_gaps(comes_as_rows=comes_as_rows) if self._has_gaps or self._missing else []
        if self.scale not in (None, 1.0) and self.takes_dense:
            self.flat.mul_(self.scale)
        if self.add_carried():
            missing = []
        self.is_shown = self.is_applied = False
        return missing

    def _fill_gaps(self, *, comes_as_rows: bool) -> list[int]:
        missing = []
        for place, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if parameter.grad is not None:
                self.take(place)
                continue
            view.zero_()
            self._has_gaps = True
            if not comes_as_rows:
                missing.append(place)
        return missing

    def marked(self, missing: Iterable[int], rank: int, position: int) -> Tensor:
        """The tensor to send: the gradients, then 1 or 0 for each that is there or missing, then the step checks."""
        self.more.fill_(1)
        for place in missing:
            self.more[place] = 0
        self.checks[:] = self.more.new_tensor(checks_of(position, rank))
        return self.whole

    def unmarked(self) -> list[int]:
        """After the sum over ranks: the places of gradients that no rank has."""
        marks = self.more[: len(self.parameters)]
        return [] if marks.all() else torch.nonzero(marks == 0).flatten().tolist()

    @property
    def checks(self) -> Tensor:
        """The elements behind the marks: see `step_position.odd_rank`."""
        return self.more[len(self.parameters) : len(self.parameters) + CHECKS]

    def complete(self, unused: Iterable[int], written: Mark, arrived: Stamp) -> None:
        """The exchange is over. Called under the reducer's lock."""
        self.unused, self.written, self.arrived = frozenset(unused), written, arrived
        self.stage = Stage.COMPLETED

    # -- what the script sees -------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether neither gradients nor an update of it are in flight."""
        return self.stage is not Stage.IN_FLIGHT and self.options is None

    def result(self, place: int) -> Tensor | None:
        """The completed gradient of a parameter, as its optimizer reads it."""
        return None if place in self.unused else self.views[place]

    def show(self) -> None:
        """Let `parameter.grad` be the completed result, except where the script has zeroed or dropped it meanwhile."""
        if self.is_shown:
            return
        if self._is_zeroed:
            self._zero()
        if self._has_gaps or self._dropped:
            for place, parameter in enumerate(self.parameters):
                parameter.grad = None if place in self._dropped else self.result(place)
        self._dropped.clear()
        self._is_zeroed, self.is_shown = False, True

    def drop(self, places: Iterable[int] | None = None) -> None:
        """Set gradients to None, as the script does: all, or those at `places`."""
        chosen = range(len(self.parameters)) if places is None else places
        for place in chosen:
            self.parameters[place].grad = None
        if not self.is_shown:
            self._dropped.update(chosen)

    def zero(self, *, set_to_none: bool) -> None:
        """As an optimizer's `zero_grad`, also while gradients are in flight."""
        if isinstance(self.codec, Factors) and self.stage is Stage.FILLING:
            self.codec.clear()
        if set_to_none:
            self.drop()
        elif self.is_shown:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.zero_()
        else:
            self._is_zeroed = True

    def _zero(self) -> None:
        self.flat.zero_()
