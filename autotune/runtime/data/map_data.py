"""A data set of a script with len() and indexing, read epoch by epoch through `Batches`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autotune.runtime.data.batch_request import Request
from autotune.runtime.data.batches import Batches
from autotune.runtime.data.epochs import Dealt, EpochCount
from autotune.runtime.data.order_sources import FixedOrders, Orders, SampledOrders


class MapData:
    """The data set on one rank."""

    def __init__(  # noqa: PLR0913 - the settings of TrainingData
        self,
        request: Request,
        samples: Sequence[int],
        rank: int,
        *,
        seed: int,
        min_samples: int = 1,
        share: Callable[[Any], Any] | None = None,
    ) -> None:
        self._count, self._min_samples = EpochCount(), min_samples
        seed += request.extra_seed
        self._batches = Batches(
            request.dataset,
            samples,
            rank,
            seed=seed,
            work=request.work,
            loss_weights=request.loss_weights,
            loading=request.loading,
            min_samples=min_samples,
            orders=_orders(request, sum(samples), seed, share),
        )

    def steps(self, request: Request, epoch: int | None) -> Iterator[int]:
        """The steps of an epoch, or its remaining steps after a checkpoint; begun by all ranks."""
        self._batches.use(request.loading, request.work, request.loss_weights)
        self._set_sampler(request)
        epoch, resumed = self._count.begin(epoch)
        steps = self._batches.begin(epoch, resumed)
        yield from steps if resumed is None else range(resumed, steps.stop)

    def deal(self, step: int) -> Dealt:
        """The batch of this rank; one of weight 0 where it has no samples."""
        batch, num_samples, _ = self._batches.take(step)
        if not num_samples:
            return Dealt(batch=self._batches.filler(self._min_samples), weight=0.0, step=step, num_samples=0)
        weight = self._batches.part(step).weight
        return Dealt(batch=batch, weight=weight, step=step, num_samples=num_samples)

    def num_steps(self, request: Request) -> int:
        """The number of steps of an epoch."""
        self._set_sampler(request)
        return self._batches.steps_per_epoch

    def num_samples(self, step: int) -> int:
        """The samples of this rank in `step`."""
        return len(self._batches.part(step).indices)

    @property
    def next_step(self) -> int:
        """The step after the last one that was taken."""
        return self._batches.next_step

    @property
    def epoch(self) -> int:
        """The epoch to continue with."""
        return self._batches.order.orders.epoch_at(self.next_step)

    def resplit(self, from_step: int, samples: Sequence[int]) -> None:
        """See `Batches.resplit`."""
        self._batches.resplit(from_step, samples)

    def state_dict(self) -> dict[str, Any]:
        """See `Batches.state_dict`."""
        return self._batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume, within an epoch if the checkpoint was made there."""
        self._batches.load_state_dict(state)
        self._count.resume(self.epoch, self.next_step)

    def close(self) -> None:
        """End worker processes."""
        self._batches.close()

    def _set_sampler(self, request: Request) -> None:
        """Use the sampler of this call: scripts may make a new one for each epoch."""
        orders = self._batches.order.orders
        if isinstance(orders, SampledOrders) and request.sampler is not None:
            orders.sampler = request.sampler


def _orders(request: Request, global_batch: int, seed: int, share: Callable[[Any], Any] | None) -> Orders:
    num_samples, drop_last = len(request.dataset), request.drop_last
    if request.sampler is not None:
        return SampledOrders(request.sampler, num_samples, global_batch, drop_last=drop_last, share=share)
    return FixedOrders(num_samples, global_batch, seed=seed if request.shuffle else None, drop_last=drop_last)
