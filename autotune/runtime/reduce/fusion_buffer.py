"""Gradients that are sent and applied together, side by side in one tensor.

Whether a parameter has a gradient is what `parameter.grad` says, as everywhere in torch: None, or a tensor that further
backward passes add to. Where autograd makes a tensor of its own, it is copied to the parameter's place in the unit.

A backward pass counts as much as this rank's share of its batch (`weigh`): the unit keeps one scale, that of the first pass
since it was empty, and gradients of passes with another weight are multiplied by the ratio on their way in.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autotune.runtime.codecs.protocol import Codec
from autotune.runtime.codecs.sufficient_factors import Factors

_ALIGNED = 64
"""What is sent is a multiple of so many elements, so that its parts begin where memory is fast."""
CHECKS = 3
"""Elements behind the gradients that tell whether all ranks are at the same step: see `odd_rank`."""


class FlatGradients:
    """Some parameters' gradients in one tensor of real numbers."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_more: int = 0) -> None:
        """`num_more`: elements beside the gradients."""
        self.parameters = list(parameters)
        first, sizes = self.parameters[0], [_num_reals(p) for p in parameters]
        num_more += -(sum(sizes) + num_more) % _ALIGNED if num_more else 0
        self.whole = torch.zeros(sum(sizes) + num_more, dtype=first.dtype.to_real(), device=first.device)
        self.flat, self.more = self.whole[: sum(sizes)], self.whole[sum(sizes) :]
        self.views = [_view_as(v, p) for p, v in zip(parameters, self.flat.split(sizes), strict=True)]
        self.carried: Tensor | None = None
        """What another codec owed when this one took its place: added to the next gradient that is sent."""
        self.is_carrying = False
        """Whether some rank has anything to add."""

    def add_carried(self) -> bool:
        """To what is to be sent; whether some rank has added anything."""
        if self.carried is not None:
            self.flat.add_(self.carried)
        was_carrying, self.carried, self.is_carrying = self.is_carrying, None, False
        return was_carrying

    def point(self) -> None:
        """Make sure that the parameters' gradients are these."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view


def _num_reals(parameter: Tensor) -> int:
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _view_as(values: Tensor, parameter: Tensor) -> Tensor:
    if parameter.is_complex():
        return torch.view_as_complex(values.view(*parameter.shape, 2))
    return values.view(parameter.shape)


class Stage(enum.Enum):
    """Where a unit is in its exchange."""

    FILLING = enum.auto()
    """This rank's gradients are being accumulated."""
    OFFERED = enum.auto()
    """On its way."""
    LANDED = enum.auto()
    """Holds the sum over all ranks, or nothing."""


class Unit(FlatGradients):
    """Some gradients, their codec, and how far they are.

    Other threads complete the exchange and the update: what they change (`stage`, `options`) is changed under the engine's
    lock. Everything else belongs to the thread of the script.
    """

    takes_sparse = False

    def __init__(self, index: int, parameters: Sequence[nn.Parameter], codec: Codec, owner: int | None = None) -> None:
        super().__init__(parameters, len(parameters) + CHECKS)
        self.index, self.codec = index, codec
        self.owner = owner
        """Which optimizer updates it; None: one that the engine does not know."""
        self.takes_dense = not isinstance(codec, Factors)
        self.stage = Stage.LANDED
        self.offered_in = self.entered_in = 0
        """The last backward pass in which it was sent, and in which a gradient came."""
        self.round = self.position = 0
        """Of its exchange; of this rank in the script when it was sent."""
        self.scale: float | None = None
        """What the gradients count when they are sent; None while there are none."""
        self.unused: frozenset[int] = frozenset()
        """Once landed: parameters, by place, that have a gradient on no rank."""
        self.options: list[dict[str, Any]] | None = None
        """The optimizer's options for the update that waits for this unit to land; None: no update waits."""
        self.is_shown = True
        """Whether `parameter.grad` says what has landed."""
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
        """Further gradients are added to what has landed, of which each rank then sends its share."""
        self.show()
        held = [place for place, parameter in enumerate(self.parameters) if parameter.grad is not None]
        for place in held:
            self.take(place)
        self.scale = 1.0 / num_ranks if held else None
        self.unused, self.round, self.stage = frozenset(), 0, Stage.FILLING

    def enter(self, number: int) -> None:
        """A backward pass begins to fill it."""
        self.entered_in, self._has_gaps = number, False
        self._missing = set(range(len(self.parameters)))

    def weigh(self, gradient: Tensor, weight: float) -> Tensor | None:
        """The gradient as it is to be accumulated, where that is another."""
        if weight == 0.0:
            return torch.zeros_like(gradient)
        if self.scale is None:
            self.scale = weight
        return None if weight == self.scale else gradient * (weight / self.scale)

    def take(self, place: int) -> None:
        """Autograd, or the script, has made a tensor of its own."""
        parameter, view = self.parameters[place], self.views[place]
        gradient = parameter.grad
        if gradient is None:
            self._has_gaps = True
        elif gradient is not view:
            view.copy_(gradient)
            parameter.grad = view

    def is_complete(self, place: int) -> bool:
        """Whether this pass has brought the last gradient, now that it has brought this one."""
        self._missing.discard(place)
        return not self._missing

    def note(self) -> None:
        """A pass has ended whose gradients are not sent yet."""
        self._versions = [view._version for view in self.views]

    @property
    def is_edited(self) -> bool:
        """Whether the script has changed such gradients since, other than to throw them away."""
        return any(
            gradient is not None and (gradient is not view or view._version != version) and bool(view.any())
            for gradient, view, version in zip(
                (p.grad for p in self.parameters), self.views, self._versions, strict=False
            )
        )

    # -- the exchange ---------------------------------------------------------------------------------------------------

    def close(self) -> list[int]:
        """No more gradients come: the places of those there are none for."""
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
        """The gradients; behind them a mark for each that is there, and what `odd_rank` needs."""
        self.more.fill_(1)
        for place in missing:
            self.more[place] = 0
        self.checks[:] = self.more.new_tensor([position, position * (rank + 1), position * position])
        return self.whole

    def unmarked(self) -> list[int]:
        """Once marks have been summed up: the places of gradients that no rank has."""
        marks = self.more[: len(self.parameters)]
        return [] if marks.all() else torch.nonzero(marks == 0).flatten().tolist()

    @property
    def checks(self) -> Tensor:
        """Behind the marks: see `odd_rank`."""
        return self.more[len(self.parameters) : len(self.parameters) + CHECKS]

    def land(self, unused: Iterable[int]) -> None:
        """The exchange is over."""
        self.unused, self.stage = frozenset(unused), Stage.LANDED

    # -- what the script sees -------------------------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """Nothing of it is on its way, neither gradients nor an update."""
        return self.stage is not Stage.OFFERED and self.options is None

    def result(self, place: int) -> Tensor | None:
        """What has landed for a parameter, as an optimizer is to see it."""
        return None if place in self.unused else self.views[place]

    def show(self) -> None:
        """Let `parameter.grad` be what has landed, less what the script has zeroed meanwhile."""
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
        """The script sets gradients to None, all or some."""
        chosen = range(len(self.parameters)) if places is None else places
        for place in chosen:
            self.parameters[place].grad = None
        if not self.is_shown:
            self._dropped.update(chosen)

    def zero(self, *, set_to_none: bool) -> None:
        """As an optimizer's `zero_grad`, also while gradients are on their way."""
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


def odd_rank(checks: Tensor, num_ranks: int, rank: int, position: int) -> int | None:
    """None if every rank has sent `position`; else a rank that has sent another.

    `checks`: the sums over ranks of t, t·(rank+1) and t². If all ranks but one have sent t, these sums about t are d, d·(r+1)
    and d²; if this rank is the one, they do not fit together so.
    """
    total, by_rank, squares = map(round, checks.tolist())
    away = total - num_ranks * position
    variance = squares - 2 * position * total + num_ranks * position * position
    if variance == 0:
        return None
    moment = by_rank - position * num_ranks * (num_ranks + 1) // 2
    is_one = away * away == variance and moment % away == 0
    return moment // away - 1 if is_one else rank
