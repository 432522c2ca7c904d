"""The arguments of `job.batches()`, checked: the data set, the order of samples, and the loading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from autotune.runtime.data.loader_parts import order_arguments, take_apart
from autotune.runtime.data.prefetch import Loading
from autotune.workloads.errors import SpecError

_LOADING = tuple(field.name for field in fields(Loading))
_ACCEPTED = sorted(
    {"epoch", "shuffle", "sampler", "drop_last", "work", "loss_weights", "timeout", *_LOADING} - {"timeout_s"}
)
_REFUSED = {
    "batch_size": "the plan sets batch sizes; use parallelize(..., global_batch=...) for another global batch",
    "batch_sampler": "the plan sets batch sizes; use sampler= for the order of samples",
    "generator": "parallelize(..., seed=...) decides the order; use sampler= for one of your own",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Request:
    """One call of `job.batches()`."""

    dataset: Any
    is_stream: bool
    """Iterable-style: without length or indexing."""
    shuffle: bool
    sampler: Iterable[int] | None
    """The order of an epoch, where it is neither shuffled nor that of the data set."""
    drop_last: bool
    extra_seed: int
    """The seed of a DistributedSampler, added to that of the job."""
    work: Sequence[float] | Tensor | None
    loss_weights: Sequence[float] | Tensor | None
    loading: Loading

    def same_source(self, other: Request) -> bool:
        """Whether both requests share one count of epochs. Two collate_fn of the same name are the same."""
        return self.dataset is other.dataset and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        collate = self.loading.collate_fn
        name = getattr(collate, "__qualname__", type(collate).__qualname__)
        return self.shuffle, self.sampler is None, self.drop_last, self.extra_seed, name


def read_request(source: Any, global_batch: int, given: dict[str, Any]) -> Request:
    """The request of a call; its arguments override those of a DataLoader."""
    how = {name: value for name, value in given.items() if value is not None}
    _check_names(how)
    if isinstance(source, DataLoader):
        source, parts = take_apart(source, global_batch)
        if "shuffle" in how or "sampler" in how:
            parts.pop("sampler", None)
        how = parts | how
    is_stream = _is_stream(source)
    if is_stream:
        _check_stream(source, how)
    if "sampler" in how:
        how = _read_sampler(how, source)
    return Request(
        dataset=source,
        is_stream=is_stream,
        shuffle=bool(how.get("shuffle", not is_stream)),
        sampler=how.get("sampler"),
        drop_last=bool(how.get("drop_last", False)),
        extra_seed=how.get("extra_seed", 0),
        work=how.get("work"),
        loss_weights=how.get("loss_weights"),
        loading=_read_loading(how),
    )


def _check_names(how: dict[str, Any]) -> None:
    for name in how:
        if name in _REFUSED:
            raise SpecError(f"job.batches() takes no `{name}`: {_REFUSED[name]}")
        if name not in _ACCEPTED and name not in _LOADING:
            raise SpecError(f"job.batches() takes no `{name}`; accepted: {', '.join(_ACCEPTED)}")


def _read_sampler(how: dict[str, Any], dataset: Any) -> dict[str, Any]:
    sampler = how.pop("sampler")
    if not hasattr(sampler, "__iter__"):
        raise SpecError(f"the sampler is a {type(sampler).__name__}: it must be an iterable of indices of the data set")
    found = order_arguments(sampler, len(dataset))
    if "sampler" in found and how.get("shuffle"):
        raise SpecError("both shuffle=True and a sampler are given, but a sampler is the order: leave out one of them")
    found["drop_last"] = bool(found.get("drop_last")) or bool(how.get("drop_last"))
    return how | found


def _read_loading(how: dict[str, Any]) -> Loading:
    named = {name: how[name] for name in _LOADING if name in how}
    if "timeout" in how:
        named["timeout_s"] = float(how["timeout"])
    return Loading(**named)


def _is_stream(source: Any) -> bool:
    name = type(source).__name__
    if hasattr(source, "__next__"):
        raise SpecError(
            f"job.batches() was given a {name}, which can be iterated only once: give an object whose __iter__ starts "
            "anew, or a list of its samples"
        )
    if isinstance(source, IterableDataset):
        return True
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return False
    if not hasattr(source, "__iter__"):
        raise SpecError(
            f"job.batches() needs a data set with len() and indexing, or one that can be iterated; {name} has neither: "
            "write `__len__` and `__getitem__`, or `__iter__`"
        )
    return True


def _check_stream(source: Any, how: dict[str, Any]) -> None:
    name = type(source).__name__
    reasons = {
        "shuffle": "its order is its own",
        "sampler": "samples cannot be picked by index",
        "work": "samples are not known before they are read",
        "loss_weights": "samples are not known before they are read",
        "num_workers": "every rank reads the whole stream, which workers cannot divide; it must be 0",
    }
    for argument, reason in reasons.items():
        value = how.get(argument)
        if value is not None and value is not False and not (argument == "num_workers" and value == 0):
            raise SpecError(
                f"job.batches() takes no `{argument}` here: {name} is iterable-style, {reason}; give a data set with len() "
                "and indexing for that"
            )
