"""The order of samples in an epoch: drawn from the seed, that of the data set, or a sampler's.

Steps are counted over all epochs. A drawn order is a pure function of the epoch, so any step can be located at any time. The
order of a sampler is known when its epoch begins: rank 0 iterates the sampler and broadcasts the order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from autotune.workloads.errors import SpecError

_KEPT_EPOCHS = 2
"""Loaders read ahead into the next epoch."""
_KEPT_SAMPLED = 4
"""Epochs of a sampler that may be iterated at the same time."""
_MOST_INDICES = 10_000_000
"""A sampler that gives this many indices, or a hundred times the data set if that is more, counts as endless."""


def steps_of(num_samples: int, global_batch: int, *, drop_last: bool) -> int:
    """The number of batches of an epoch; an epoch must have at least one."""
    if num_samples < 1:
        raise SpecError("the data set is empty: training needs one sample at least")
    if drop_last and num_samples < global_batch:
        raise SpecError(
            f"an epoch of {num_samples} samples has no batch of {global_batch}, and drop_last leaves out a short one: use "
            "drop_last=False or a smaller global batch"
        )
    return _num_batches(num_samples, global_batch, drop_last=drop_last)


def _num_batches(num_samples: int, global_batch: int, *, drop_last: bool) -> int:
    return num_samples // global_batch if drop_last else -(-num_samples // global_batch)


class Orders(Protocol):
    """The order of the samples of every epoch, and the epoch of every step."""

    kind: str
    """Checkpoints of another kind are refused."""
    drop_last: bool

    def begin(self, epoch: int, resumed: int | None) -> range:
        """The steps of an epoch that all ranks begin. `resumed`: the step to resume at, if a checkpoint was made in it."""
        ...

    def locate(self, step: int) -> tuple[Tensor, int] | None:
        """The order of the epoch of `step`, and the number of the step in it; None if the order is not known yet."""
        ...

    def epoch_at(self, next_step: int) -> int:
        """The epoch that contains `next_step`."""
        ...

    def num_steps(self) -> int:
        """The number of steps of an epoch."""
        ...

    def state(self, next_step: int) -> dict[str, Any]:
        """The entries of a checkpoint that resumes at `next_step`."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint."""
        ...


class FixedOrders:
    """All samples in every epoch: shuffled by seed and epoch, or in the order of the data set."""

    def __init__(self, num_samples: int, global_batch: int, *, seed: int | None, drop_last: bool = False) -> None:
        """Without a seed samples are not shuffled."""
        self.kind = "sequential" if seed is None else "shuffled"
        self._num_samples, self._seed, self.drop_last = num_samples, seed, drop_last
        self._steps = steps_of(num_samples, global_batch, drop_last=drop_last)
        self._orders: dict[int, Tensor] = {}

    def begin(self, epoch: int, resumed: int | None) -> range:  # noqa: ARG002 - every order is known
        """See `Orders`."""
        return range(epoch * self._steps, (epoch + 1) * self._steps)

    def locate(self, step: int) -> tuple[Tensor, int]:
        """See `Orders`."""
        epoch, within = divmod(step, self._steps)
        return self._order(epoch), within

    def epoch_at(self, next_step: int) -> int:
        """See `Orders`."""
        return next_step // self._steps

    def num_steps(self) -> int:
        """See `Orders`."""
        return self._steps

    def state(self, next_step: int) -> dict[str, Any]:  # noqa: ARG002 - the step determines everything
        """See `Orders`."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """See `Orders`."""

    def _order(self, epoch: int) -> Tensor:
        if self._seed is None:
            epoch = 0
        if epoch not in self._orders:
            if len(self._orders) >= _KEPT_EPOCHS:
                del self._orders[min(self._orders)]
            self._orders[epoch] = self._draw(epoch)
        return self._orders[epoch]

    def _draw(self, epoch: int) -> Tensor:
        if self._seed is None:
            return torch.arange(self._num_samples)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        return torch.randperm(self._num_samples, generator=generator)


@dataclass(frozen=True, slots=True)
class _Sampled:
    epoch: int
    steps: range
    order: Tensor


class SampledOrders:
    """The order of a user's sampler, iterated at the beginning of every epoch."""

    kind = "sampler"

    def __init__(
        self,
        sampler: Iterable[int],
        num_samples: int,
        global_batch: int,
        *,
        drop_last: bool = False,
        share: Callable[[Any], Any] | None = None,
    ) -> None:
        """`share`: broadcasts rank 0's value; called by all ranks."""
        self.sampler = sampler
        self._num_samples, self._global_batch, self.drop_last = num_samples, global_batch, drop_last
        self._share = share or (lambda value: value)
        self._begun: list[_Sampled] = []
        self._next = (0, 0)
        """The epoch and the first step after all begun epochs."""

    def begin(self, epoch: int, resumed: int | None) -> range:
        """See `Orders`."""
        if resumed is not None and (found := self._at(resumed)) is not None:
            return found.steps
        start = self._next[1]
        order = self._sample(epoch)
        self._keep(epoch, start, order)
        return self._begun[-1].steps

    def locate(self, step: int) -> tuple[Tensor, int] | None:
        """See `Orders`."""
        found = self._at(step)
        return None if found is None else (found.order, step - found.steps.start)

    def epoch_at(self, next_step: int) -> int:
        """See `Orders`."""
        found = self._at(next_step)
        return self._next[0] if found is None else found.epoch

    def num_steps(self) -> int:
        """By the length of the sampler; without one, the number of steps of the last epoch."""
        try:
            return _num_batches(len(self.sampler), self._global_batch, drop_last=self.drop_last)  # type: ignore[arg-type]
        except TypeError:
            if not self._begun:
                raise TypeError(
                    f"the sampler {type(self.sampler).__name__} has no len(): how many steps its epoch has is known once "
                    "it is iterated"
                ) from None
            return len(self._begun[-1].steps)

    def state(self, next_step: int) -> dict[str, Any]:
        """Includes the order of an unfinished epoch: a sampler may not give the same order again."""
        found = self._at(next_step)
        if found is None:
            return {"epoch": self.epoch_at(next_step), "epoch_start": next_step}
        return {"epoch": found.epoch, "epoch_start": found.steps.start, "epoch_order": found.order.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Orders`."""
        self._begun.clear()
        self._next = (int(state["epoch"]), int(state["epoch_start"]))
        if "epoch_order" in state:
            self._keep(*self._next, torch.tensor(state["epoch_order"], dtype=torch.long))

    def _keep(self, epoch: int, start: int, order: Tensor) -> None:
        num_steps = steps_of(len(order), self._global_batch, drop_last=self.drop_last)
        self._begun = [*self._begun[1 - _KEPT_SAMPLED :], _Sampled(epoch, range(start, start + num_steps), order)]
        self._next = (epoch + 1, start + num_steps)

    def _at(self, step: int) -> _Sampled | None:
        return next((each for each in self._begun if step in each.steps), None)

    def _sample(self, epoch: int) -> Tensor:
        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)
        limit = max(100 * self._num_samples, _MOST_INDICES)
        found = self._share([_index(each) for each in islice(self.sampler, limit)])
        if not found or len(found) == limit:
            raise SpecError(
                f"the sampler {type(self.sampler).__name__} gave {len(found)} indices for epoch {epoch}: it must give one at "
                "least, and end; a generator is used up after one epoch, so give an object whose __iter__ starts anew"
            )
        if not 0 <= min(found) <= max(found) < self._num_samples:
            wrong = next(index for index in found if not 0 <= index < self._num_samples)
            raise SpecError(
                f"the sampler gave index {wrong} but the data set has {self._num_samples} samples: indices are from 0 to "
                f"{self._num_samples - 1}"
            )
        return torch.tensor(found, dtype=torch.long)


def _index(given: Any) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise SpecError(
            f"the sampler gave {given!r}, a {type(given).__name__}: it must give one index of the data set at a time; the plan "
            "sets batch sizes, so a batch sampler cannot be used"
        ) from None
