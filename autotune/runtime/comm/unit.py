"""Gradients that travel and are applied together, side by side in one tensor."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autotune.runtime.comm.codec import Codec


class FlatGradients:
    """Some parameters' gradients in one tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_more: int = 0) -> None:
        """`num_more`: elements beside the gradients."""
        self.parameters = list(parameters)
        first, sizes = self.parameters[0], [p.numel() for p in parameters]
        whole = torch.zeros(sum(sizes) + num_more, dtype=first.dtype, device=first.device)
        self.flat, self.more = whole[: sum(sizes)], whole[sum(sizes) :]
        self.whole = whole
        # `.data`: a version counter of its own, so that what others change is told from what we do with `flat`.
        self.views = [v.view_as(p).data for p, v in zip(parameters, self.flat.split(sizes), strict=True)]
        self.hidden = True
        """Whether the parameters' gradients are somewhere else."""

    def point(self) -> None:
        """Make sure that the parameters' gradients are these."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view
        self.hidden = False

    def hide(self) -> None:
        """Take the gradients out of sight: what is on its way is nobody's to change."""
        for parameter in self.parameters:
            parameter.grad = None
        self.hidden = True


class Stage(enum.Enum):
    """Where a unit is in its step."""

    FILLING = enum.auto()
    """Gradients are being accumulated, or none is there yet; parameters are up to date."""
    OFFERED = enum.auto()
    """On its way."""
    LANDED = enum.auto()
    """Holds the sum over all ranks."""


class Unit(FlatGradients):
    """Some gradients, their codec, and how far they are. What other threads change is changed under the engine's lock."""

    def __init__(self, index: int, parameters: Sequence[nn.Parameter], codec: Codec) -> None:
        super().__init__(parameters, len(parameters))
        self.index = index
        self.codec = codec
        self.stage = Stage.FILLING
        self.has_traveled = False
        """Whether it has landed at least once."""
        self.offered_in = 0
        """The backward pass in which it was last offered."""
        self.round = 0
        self.unused: frozenset[int] = frozenset()
        """Once landed: parameters, by place, that had a gradient on no rank."""
        self.options: list[dict[str, Any]] | None = None
        """The optimizer's options for the update that waits for this unit to land; None: nobody has asked for one."""
        self._missing = set(range(len(self.parameters)))
        self._filled: set[int] = set()
        self._reopened = False
        self._versions: list[int] = []
        self._remembered: Tensor | None = None

    def accumulated(self, place: int, *, last: bool) -> bool:
        """A gradient has been accumulated, for the last time before the exchange if `last`; whether that was the last."""
        self._take(place)
        self._filled.add(place)
        if last:
            self._missing.discard(place)
        return last and not self._missing

    def close(self) -> list[int]:
        """No more gradients come: the places of those there are none for."""
        missing = []
        for place, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if place in self._filled:
                self._take(place)
                continue
            if parameter.grad is None or not self._reopened:
                missing.append(place)
                view.zero_()
            parameter.grad = view
        self.hidden = False
        self._versions = [view._version for view in self.views]
        return missing

    def marked(self, missing: Iterable[int]) -> Tensor:
        """The gradients, and behind them a mark for each that is there."""
        self.more.fill_(1)
        for place in missing:
            self.more[place] = 0
        return self.whole

    def unmarked(self) -> list[int]:
        """Once marks have been summed up: the places of gradients that no rank has."""
        return [] if self.more.all() else torch.nonzero(self.more == 0).flatten().tolist()

    def land(self, unused: Iterable[int]) -> None:
        """The exchange is over."""
        self.unused, self.stage, self.has_traveled = frozenset(unused), Stage.LANDED, True

    def reopen(self) -> None:
        """Further gradients are to be added to what has landed. Every rank adds to the same sum and sends its share of it
        again, and the shares make up a whole. What was set to None meanwhile is gone.
        """
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
        self.start(empty=False)

    def start(self, *, empty: bool = True) -> None:
        """Ready for the gradients of a step."""
        if empty:
            self.flat.zero_()
        self._reopened = not empty
        self._missing = set(range(len(self.parameters)))
        self._filled.clear()
        self.round, self.options, self.stage = 0, None, Stage.FILLING

    @property
    def is_filled(self) -> bool:
        """Whether gradients of a step that is not over have been accumulated."""
        return self.stage is Stage.FILLING and bool(self._filled)

    def is_written(self, place: int) -> bool:
        """Whether a gradient is there that is not zero."""
        gradient = self.parameters[place].grad
        return gradient is not None and bool(gradient.any())

    def remember(self) -> None:
        """Keep what has landed, to tell later whether somebody has changed it."""
        self._remembered = self.flat.clone()

    def is_changed(self) -> bool:
        """Whether what was remembered is something else now; it is forgotten."""
        remembered, self._remembered = self._remembered, None
        return remembered is not None and not torch.equal(remembered, self.flat)

    def touched(self) -> bool:
        """Whether somebody else has changed a gradient since it was offered, by an op that leaves a mark: most do."""
        return self._versions != [view._version for view in self.views]

    def hide_unused(self) -> None:
        """As without exchange, a parameter that took no part anywhere has no gradient, and an optimizer leaves it alone."""
        for place in self.unused:
            self.parameters[place].grad = None

    def forget(self) -> None:
        """Drop what has been accumulated, or what has landed and nobody has used."""
        if self.stage is not Stage.FILLING:
            self.hide()
        elif self._filled or self._reopened:
            self.start()
            self.point()

    def _take(self, place: int) -> None:
        """Autograd makes a tensor of its own where the gradient had been set to None."""
        parameter, view = self.parameters[place], self.views[place]
        gradient = parameter.grad
        if gradient is view:
            return
        if gradient is not None:
            view.copy_(gradient)
        parameter.grad = view
