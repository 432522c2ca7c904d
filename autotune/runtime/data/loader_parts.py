"""The parts of a torch DataLoader, so that a script may pass its own.

The plan splits global batches among ranks, so the loader itself is never iterated: its data set is read in the order of its
sampler, by workers with the same settings. A DistributedSampler, which divides the data among ranks, only states whether to
shuffle.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from autotune.workloads.errors import SpecError

_SAME = ("num_workers", "worker_init_fn", "timeout", "pin_memory", "persistent_workers", "multiprocessing_context")
"""Attributes of a loader that are arguments of `job.batches()` too."""


def take_apart(loader: DataLoader[Any], global_batch: int) -> tuple[Any, dict[str, Any]]:
    """Its data set, and its other settings as arguments of `job.batches()`."""
    _check_batch_size(loader, global_batch)
    parts: dict[str, Any] = {name: getattr(loader, name) for name in _SAME}
    if loader.prefetch_factor is not None:
        parts["prefetch_factor"] = loader.prefetch_factor
    if loader.collate_fn is not default_collate:
        parts["collate_fn"] = loader.collate_fn
    if not isinstance(loader.dataset, IterableDataset):
        parts["sampler"] = loader.sampler
    return loader.dataset, parts | {"drop_last": loader.drop_last}


def order_arguments(sampler: Any, num_samples: int) -> dict[str, Any]:
    """For a sampler whose order the seed can draw, its flags; any other sampler is itself the order."""
    if isinstance(sampler, DistributedSampler):
        return {"shuffle": sampler.shuffle, "extra_seed": sampler.seed, "drop_last": sampler.drop_last}
    if type(sampler) is SequentialSampler and len(sampler) == num_samples:
        return {"shuffle": False}
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == num_samples:
        return {"shuffle": True}
    return {"sampler": sampler}


def _check_batch_size(loader: DataLoader[Any], global_batch: int) -> None:
    if loader.batch_size is None:
        given = "a batch sampler of its own" if loader.batch_sampler is not None else "batch_size=None"
        raise SpecError(
            f"the DataLoader has {given}, but the plan divides every global batch among ranks: give a DataLoader with "
            f"batch_size={global_batch}, or its data set"
        )
    total, product = loader.batch_size, ""
    if isinstance(loader.sampler, DistributedSampler):
        total *= loader.sampler.num_replicas
        product = f" on each of {loader.sampler.num_replicas} ranks, {total} together,"
    if global_batch not in {loader.batch_size, total}:
        raise SpecError(
            f"the DataLoader's batch_size is {loader.batch_size}{product} but the global batch of the plan is {global_batch}: "
            f"use parallelize(..., global_batch={total}), a DataLoader with batch_size={global_batch}, or give the data set"
        )
