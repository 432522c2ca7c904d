"""The samples of a rank in a step: a pure function of the step, the order of its epoch and the splits agreed on.

All ranks share one order of each epoch (`order_sources`). Step s of an epoch takes its positions [sB, (s+1)B) for every
split; the split only assigns them to ranks. So the split may change at any step (DBS, arXiv 2007.11831, changes it per
epoch): as long as all ranks agree on the first step of a split, every sample is used exactly once per epoch and step counts
are equal by construction. The last batch of an epoch is short and keeps the split's proportions. Samples of unequal work
are assigned by their work (`dealing`).
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
    """The part of one rank in one step."""

    indices: Tensor
    """Indices of its samples in the data set."""
    total: int
    """The number of samples of all ranks."""
    work: float
    """The work of its samples; their number where no `work` is given."""
    weight: float
    """The weight of its mean loss in that of the whole batch; the weights of all ranks sum to 1."""


UNKNOWN = Part(indices=torch.empty(0, dtype=torch.long), total=0, work=0.0, weight=0.0)
"""The part of a step in an epoch whose order is not known yet."""


class SampleOrder:
    """The samples of one rank, from the order in which all ranks together read a data set."""

    def __init__(  # noqa: PLR0913 - the parts of an order
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
        """`orders`: default: shuffled for each epoch. `min_samples`: the fewest samples of a rank that has any, in a short
        batch or with `work`. `work`, `loss_weights`: see `weigh`.
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
        """`work`: of each sample; ranks get work in proportion to the split. `loss_weights`: the weight of each sample in the
        loss, where that is not a plain mean over samples: its tokens for a mean over tokens.
        """
        self._work = _positive("work", work, self.num_samples)
        self._loss_weights = _positive("loss weights", loss_weights, self.num_samples)
        self.mean_work = 1.0 if self._work is None else float(self._work.mean())
        """The mean work of a sample."""
        self._parts.clear()

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """See `SplitHistory.resplit`."""
        self.splits.resplit(from_step, samples)
        self._parts.clear()

    def split(self, step: int) -> tuple[int, ...]:
        """The split of `step`."""
        return self.splits.at(step)

    def part(self, step: int) -> Part:
        """The part of this rank in `step`."""
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
        """Load the splits and the order of a checkpoint."""
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
        # fsum rounds once: the weights of all ranks sum to 1 within 4 units in the last place, for any number of samples.
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
