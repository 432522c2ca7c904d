"""Error feedback: what a lossy codec leaves out of a step is added to the next step's gradient.

Every rank keeps what it owes, the residual. A step adds the new gradient to the residual, sends what the codec can
carry of it, and subtracts exactly that. So after any number of steps, what was applied plus the residuals, summed over
ranks, equals the true gradients: nothing is lost, it is only late (Karimireddy et al., "Error Feedback Fixes SignSGD",
2019).

A result that is not finite shows that the gradient of some rank was not. It is the same on every rank, and all ranks
reset their residuals to zero, which would never become finite again. Left out: decay of old errors, and learning rates
that change between steps (an error is applied at the rate of the step in which it is sent).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from autotune.runtime.codecs.protocol import Round


class Lossy(Protocol):
    """A codec that keeps no residual itself.

    Invariant: over a step, what all ranks subtract from `owed` sums to the result. A value that is not finite makes the
    result not finite too.
    """

    name: str

    def send(self, owed: Tensor) -> Round:
        """The first round; subtracts from `owed` what is certain to arrive. No tensor of the round is `owed` itself."""

    def receive(self, received: Sequence[Tensor], owed: Tensor, flat: Tensor) -> Round | None:
        """The next round, or None once the result is in `flat`; subtracts from `owed`, or adds to it, what this round
        has decided.
        """

    def buffer_bytes(self, flat: Tensor) -> int:
        """Memory beside `flat` and `owed`."""


class ErrorFeedback:
    """A codec that adds what it cannot send now to the gradient of the next step."""

    is_lossless = False

    def __init__(self, lossy: Lossy) -> None:
        self.name = lossy.name
        self._lossy = lossy
        self._owed = torch.empty(0)
        self._has_begun = False

    def owed_like(self, flat: Tensor) -> Tensor:
        """The residual of this rank."""
        return self._owed if self._has_begun else torch.zeros_like(flat)

    def encode(self, flat: Tensor) -> Round:
        if self._has_begun:
            self._owed.add_(flat)
        else:
            self._owed, self._has_begun = flat.clone(), True
        return self._lossy.send(self._owed)

    def decode(self, received: Sequence[Tensor], flat: Tensor) -> Round | None:
        following = self._lossy.receive(received, self._owed, flat)
        if following is None:
            # One sum detects any inf or nan, and a mask instead of an `if` does not synchronise with a GPU.
            self._owed.masked_fill_(~flat.sum().isfinite(), 0.0)
        return following

    def buffer_bytes(self, flat: Tensor) -> int:
        return flat.nbytes + self._lossy.buffer_bytes(flat)
