"""The embedding bags of a model, taken out of it: in their places stand modules that return what was pooled before."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from autotune.runtime.embedding.layout import Lookup
from autotune.workloads.errors import SpecError


class PulledBag(nn.Module):
    """Returns the bags of a batch, whose rows were pulled before the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.pooled: Tensor | None = None

    def forward(self, *_lookups: Tensor, **_more: Tensor) -> Tensor:
        """The arguments are those that the workload's `lookups` stated."""
        pooled, self.pooled = self.pooled, None
        if pooled is None:
            raise SpecError("an embedding bag is called twice in a pass: tables on servers are looked up once")
        return pooled


def bags_of(model: nn.Module) -> dict[str, nn.EmbeddingBag]:
    """The bags of a model by name; SpecError for one with options that tables on servers have not."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.EmbeddingBag)}
    if not found:
        raise SpecError("the plan has embedding servers but the model has no nn.EmbeddingBag: use a plan without them")
    for name, bag in found.items():
        if bag.mode == "max" or bag.max_norm is not None or bag.padding_idx is not None or bag.scale_grad_by_freq:
            raise SpecError(
                f"embedding bag {name!r} has mode max, max_norm, padding_idx or scale_grad_by_freq, which tables on servers have "
                "not: use a plan without embedding servers"
            )
    return found


def take_out(model: nn.Module, bags: Mapping[str, nn.EmbeddingBag]) -> dict[str, PulledBag]:
    """Put a PulledBag in the place of every bag."""
    pulled = {}
    for name in bags:
        owner, _, attribute = name.rpartition(".")
        pulled[name] = PulledBag()
        setattr(model.get_submodule(owner), attribute, pulled[name])
    return pulled


def lookup_of(arguments: tuple[Tensor, Tensor | None], bag: nn.EmbeddingBag) -> Lookup:
    """The ids and where each sample's begin, as one calls an `nn.EmbeddingBag`: also with rows of equally many ids."""
    ids, offsets = arguments
    if offsets is None:
        num_bags, each = ids.shape
        return Lookup(ids=ids.reshape(-1).cpu(), offsets=torch.arange(num_bags) * each)
    return Lookup(ids=ids.cpu(), offsets=(offsets[:-1] if bag.include_last_offset else offsets).cpu())


def mean_of(sums: Tensor, lookup: Lookup) -> Tensor:
    """The sums of bags over how many ids each holds."""
    counts = torch.diff(lookup.offsets, append=lookup.offsets.new_tensor([len(lookup.ids)]))
    return sums / counts.clamp(min=1)[:, None].to(sums.device, sums.dtype)
