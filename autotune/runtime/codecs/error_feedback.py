"""Error feedback: what a lossy codec leaves out of a step is added to the next step's gradient.

Every rank keeps what it owes. A step adds the new gradient to it, sends what the codec can carry of the whole, and takes
exactly that out again. So over any number of steps what was applied and what is still owed, summed over ranks, make up the
true gradients: nothing is lost, it is only late (Karimireddy et al., "Error Feedback Fixes SignSGD", 2019).

A result that is not finite shows that some rank's gradient was not. Every rank sees it, and all forget what they owe: it
would never become finite again. Left out: decay of old errors, and learning rates that change between steps (an error is
applied at the rate of the step that it arrives in).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from autotune.runtime.codecs.protocol import Round


class Lossy(Protocol):
    """A codec without a memory of what it left out.

    Invariant: over a step, what all ranks take out of `owed` sums to the result. A value that is not finite makes the
    result not finite too.
    """

    name: str

    def send(self, owed: Tensor) -> Round:
        """The first round; what of `owed` is known to arrive is taken out of it. No tensor of the round is `owed` itself."""

    def receive(self, received: Sequence[Tensor], owed: Tensor, flat: Tensor) -> Round | None:
        """The next round, or None once the result is in `flat`; what this round decided is taken out of, or put back
        into, `owed`.
        """

    def buffer_bytes(self, flat: Tensor) -> int:
        """Memory taken beside `flat` and `owed`."""


class ErrorFeedback:
    """A codec that pays later what it cannot send now."""

    is_lossless = False

    def __init__(self, lossy: Lossy) -> None:
        self.name = lossy.name
        self._lossy = lossy
        self._owed = torch.empty(0)
        self._has_begun = False

    def owed_like(self, flat: Tensor) -> Tensor:
        """What this rank owes."""
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
            # One sum tells of any inf or nan, and a mask in place of an `if` does not wait for a GPU.
            self._owed.masked_fill_(~flat.sum().isfinite(), 0.0)
        return following

    def buffer_bytes(self, flat: Tensor) -> int:
        return flat.nbytes + self._lossy.buffer_bytes(flat)
