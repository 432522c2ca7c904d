"""Which samples a rank takes in a step: a pure function of the step, the order of its epoch and the splits agreed on.

All ranks share one order of each epoch (`order_sources`). Step s of an epoch takes positions [sB, (s+1)B) of it, whatever the
split, and the split only says which rank takes which of them. So it may change at any step (DBS, arXiv 2007.11831, changes it
per epoch): every sample is used exactly once per epoch and step counts are equal by construction, as long as all ranks agree
from which step a split holds. The last batch of an epoch is short and keeps the split's proportions. Samples of unequal work
are dealt instead of sliced (`dealing`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autotune.runtime.data.dealing import deal
from autotune.runtime.data.order_sources import FixedOrders, Orders
from autotune.runtime.data.split_history import SplitHistory, slice_of
from autotune.workloads.errors import SpecError

_KEPT_PARTS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one rank does of one step."""

    indices: Tensor
    """Of the data set's samples."""
    total: int
    """Samples of all ranks together."""
    work: float
    """Of its samples; their number where the data set does not say."""
    weight: float
    """What its mean loss counts in that of the whole batch; the weights of all ranks sum to 1."""


UNKNOWN = Part(indices=torch.empty(0, dtype=torch.long), total=0, work=0.0, weight=0.0)
"""Of a step in an epoch whose order is not known yet."""


class SampleOrder:
    """One rank's view of the order in which all ranks together go through a data set."""

    def __init__(  # noqa: PLR0913 - what an order is made of
        self,
        num_samples: int,
        samples: Sequence[int],
        rank: int,
        *,
        seed: int,
        work: Sequence[float] | Tensor | None = None,
        loss_weights: Sequence[float] | Tensor | None = None,
        min_samples: int = 1,
        orders: Orders | None = None,
    ) -> None:
        """`orders`: a shuffled one for each epoch, if not given. `min_samples`: of a rank that has any, in a short batch or
        where samples are dealt. `work`, `loss_weights`: see `weigh`.
        """
        self.num_samples, self.global_batch = num_samples, sum(samples)
        self.rank, self.seed = rank, seed
        self.orders = orders or FixedOrders(num_samples, self.global_batch, seed=seed)
        self.splits = SplitHistory(samples)
        self._min_samples = min_samples
        self._parts: dict[int, Part] = {}
        self.weigh(work, loss_weights)

    def weigh(
        self, work: Sequence[float] | Tensor | None = None, loss_weights: Sequence[float] | Tensor | None = None
    ) -> None:
        """`work`: of each sample, to be dealt out in proportion to the split. `loss_weights`: what each sample counts in the
        loss, if that is not a plain mean over samples: its tokens, where the loss is a mean over tokens.
        """
        self._work = _positive("work", work, self.num_samples)
        self._loss_weights = _positive("loss weights", loss_weights, self.num_samples)
        self.mean_work = 1.0 if self._work is None else float(self._work.mean())
        """Of a sample."""
        self._parts.clear()

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """See `SplitHistory.resplit`."""
        self.splits.resplit(from_step, samples)
        self._parts.clear()

    def split(self, step: int) -> tuple[int, ...]:
        """The split that holds in `step`."""
        return self.splits.at(step)

    def part(self, step: int) -> Part:
        """What this rank does in `step`."""
        if (found := self._parts.get(step)) is not None:
            return found
        if (located := self.orders.locate(step)) is None:
            return UNKNOWN
        if len(self._parts) >= _KEPT_PARTS:
            self._parts.clear()
        order, within = located
        chunk = order[within * self.global_batch : (within + 1) * self.global_batch]
        made = self._parts[step] = self._make_part(chunk, self.split(step))
        return made

    def load(self, state: dict[str, Any]) -> None:
        """Splits and order of a checkpoint."""
        self.splits.load(state["splits"])
        self.orders.load(state)
        self._parts.clear()

    def _make_part(self, chunk: Tensor, split: Sequence[int]) -> Part:
        if self._work is None:
            mine = chunk[slice_of(split, len(chunk), self.rank, self._min_samples)]
        else:
            mine = chunk[deal(self._work[chunk], split, self._min_samples) == self.rank]
        return Part(
            indices=mine,
            total=len(chunk),
            work=float(len(mine)) if self._work is None else float(self._work[mine].sum()),
            weight=self._weight(mine, chunk),
        )

    def _weight(self, mine: Tensor, chunk: Tensor) -> float:
        if self._loss_weights is None:
            return len(mine) / len(chunk)
        # Sums rounded once each: the ranks' weights then sum to 1 within 4 units of the last place, however many samples.
        return math.fsum(self._loss_weights[mine].tolist()) / math.fsum(self._loss_weights[chunk].tolist())


def _positive(what: str, values: Sequence[float] | Tensor | None, num_samples: int) -> Tensor | None:
    if values is None:
        return None
    given = torch.as_tensor(values, dtype=torch.float64)
    if given.shape != (num_samples,):
        raise SpecError(
            f"{what} of shape {list(given.shape)} for {num_samples} samples: give one number for each sample of the data set"
        )
    if bad := [value for value in given.tolist() if not (math.isfinite(value) and value > 0)][:1]:
        raise SpecError(
            f"{what} hold {bad[0]}: every sample's must be above 0; leave samples without any out of the data"
        )
    return given
