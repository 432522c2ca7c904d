"""The reference: what a job does, in one process without autotune.

`parallelize` here replaces the real one. The script makes the plan of N ranks, and this job runs it as one process on
the whole batches. Only BatchNorm without `sync_norm` depends on the split: such a layer normalises each rank's slice apart,
with buffers for each rank. Mode "permuted" reverses the samples of each slice, and "sliced" runs models on each slice apart as
well: both add the same numbers up in another order, which shows how much rounding changes a loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from autotune.workloads.plan import Plan


class PlainJob:
    """A job of one process, on the whole batches."""

    rank, size, barrier_reason = 0, 1, ""

    def __init__(  # noqa: PLR0913 - as `parallelize`
        self, models: Any, optimizers: Any, plan: Plan | None, *, global_batch: int, sync_norm: bool = False,
        seed: int = 0, mode: str = "",
    ) -> None:  # fmt: skip
        self.plan, self._batch, self._seed, self._mode = plan, global_batch, seed, mode
        self._splits: list[tuple[int, list[int]]] = [(0, list(plan.batch.samples) if plan else [global_batch])]
        self._sources: list[dict[str, Any]] = []
        self._resumed: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        """Samples of each rank in the current batch."""
        self._undo: list[nn.Module] = []
        for model in models if isinstance(models, list) else [models]:
            self._replace_forwards(model, local=not sync_norm)

    def _replace_forwards(self, model: nn.Module, *, local: bool) -> None:
        norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
        for layer in norms if local else []:
            self._replace(layer, _LocalNorm(layer, self).forward)
        if self._mode == "sliced" and not norms:
            self._replace(model, functools.partial(_sliced, model.forward, self))

    def _replace(self, module: nn.Module, forward: Callable[..., Tensor]) -> None:
        module.forward = forward
        self._undo.append(module)

    def __deepcopy__(self, _: dict[int, Any]) -> PlainJob:
        """A model may be copied while it is in training; its job is not."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._undo:
            del module.forward

    def batches(self, source: Any, **how: Any) -> _Epochs:
        """Whole batches, in the order of a job of any size."""
        return _Epochs(self, source, how)

    def deal(self, dataset: Any, how: dict[str, Any]) -> Iterator[Any]:
        """One epoch."""
        source = self.source(dataset, how)
        number = source["epoch"] if how.get("epoch") is None else how["epoch"]
        order = self._order(len(dataset), number, how)
        for within in range(source.pop("resume", 0), source["steps"]):
            step = number * source["steps"] + within
            source["epoch"], source["next"] = divmod(step + 1, source["steps"])
            chunk = order[within * self._batch : (within + 1) * self._batch]
            self.sizes = self._split_of(len(chunk), step)
            if self._mode:
                chunk = torch.cat([part.flip(0) for part in chunk.split(self.sizes)])
            yield dataset[chunk]
        source["epoch"], source["next"] = number + 1, 0

    def source(self, dataset: Any, how: dict[str, Any]) -> dict[str, Any]:
        """Where a data set stands."""
        for source in self._sources:
            if source["dataset"] is dataset:
                return source
        length = len(dataset)
        steps = length // self._batch if how.get("drop_last") else -(-length // self._batch)
        made = {"dataset": dataset, "steps": steps, "epoch": 0, "next": 0}
        for kept in self._resumed[len(self._sources) :][:1]:
            made |= {"epoch": kept["epoch"], "next": kept["next"], "resume": kept["next"]}
        self._sources.append(made)
        return made

    def _order(self, length: int, epoch: int, how: dict[str, Any]) -> Tensor:
        if how.get("sampler") is not None:
            return torch.tensor(list(how["sampler"]))
        if not how.get("shuffle", True):
            return torch.arange(length)
        return torch.randperm(length, generator=torch.Generator().manual_seed(self._seed * 1_000_003 + epoch))

    def _split_of(self, length: int, step: int) -> list[int]:
        split = [split for start, split in self._splits if start <= step][-1]
        sizes, left = [], length
        for size in split:
            sizes.append(min(size, left))
            left -= sizes[-1]
        return sizes

    def count(self, num_samples: int) -> None:
        """The whole batch."""
        self.sizes = self._split_of(num_samples, 0)

    def mean(self, value: Any) -> Any:
        """There is one rank."""
        return value

    def no_sync(self) -> nullcontext[None]:
        return nullcontext()

    def wait(self) -> None:
        """Nothing is in flight."""

    def resplit(self, from_step: int, samples: list[int]) -> None:
        self._splits.append((from_step, list(samples)))

    def switch(self, plan: Plan) -> None:
        """Plans change nothing here."""

    @property
    def next_step(self) -> int:
        source = self._sources[0]
        return int(source["epoch"] * source["steps"] + source["next"])

    @property
    def epoch(self) -> int:
        first = [*self._sources, *self._resumed]
        return int(first[0]["epoch"]) if first else 0

    def state_dict(self) -> dict[str, Any]:
        return {"sources": [{"epoch": each["epoch"], "next": each["next"]} for each in self._sources]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumed = state["sources"]
        for source, kept in zip(self._sources, self._resumed, strict=False):
            source |= {"epoch": kept["epoch"], "next": kept["next"], "resume": kept["next"]}


class _Epochs:
    """The batches of a data set, of a loader's, or of a stream; iterated again it is the next epoch."""

    def __init__(self, job: PlainJob, source: Any, how: dict[str, Any]) -> None:
        if isinstance(source, DataLoader):
            how = {"shuffle": isinstance(source.sampler, RandomSampler), "drop_last": source.drop_last} | how
            source = source.dataset
        if isinstance(source, IterableDataset):
            source, how = source.whole, how | {"shuffle": False}  # type: ignore[attr-defined]
        self._job, self._source, self._how = job, source, how

    def __len__(self) -> int:
        return int(self._job.source(self._source, self._how)["steps"])

    def __iter__(self) -> Iterator[Any]:
        return self._job.deal(self._source, self._how)


def _sliced(forward: Callable[..., Tensor], job: PlainJob, *args: Any) -> Tensor:
    """The model, on each rank's slice of the batch."""
    sizes = [size for size in job.sizes if size]
    if sum(sizes) != len(args[0]):
        return forward(*args)
    parts = [arg.split(sizes) if torch.is_tensor(arg) else [arg] * len(sizes) for arg in args]
    return torch.cat([forward(*part) for part in zip(*parts, strict=True)])


class _LocalNorm:
    """A BatchNorm layer of N ranks: the layer itself is rank 0's, the others have buffers of their own."""

    def __init__(self, layer: _BatchNorm, job: PlainJob) -> None:
        self._layer, self._job = layer, job
        self._forward = type(layer).forward
        self._buffers = {0: dict(layer.named_buffers())}
        self._first = {name: value.clone() for name, value in layer.named_buffers()}

    def forward(self, x: Tensor) -> Tensor:
        pieces = x.split([size for size in self._job.sizes if size])
        return torch.cat([self._of_rank(rank, piece) for rank, piece in enumerate(pieces)])

    def _of_rank(self, rank: int, x: Tensor) -> Tensor:
        own = self._buffers.setdefault(rank, {name: value.clone() for name, value in self._first.items()})
        self._layer._buffers.update(own)
        try:
            return self._forward(self._layer, x)
        finally:
            self._layer._buffers.update(self._buffers[0])
