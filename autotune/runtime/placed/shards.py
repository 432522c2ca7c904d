"""Vocabulary-parallel layers: an embedding sharded by rows, an output layer with its cross entropy sharded by classes.

As in Megatron-LM (Shoeybi et al. 2019), each device holds some of the rows. The output of an embedding is the sum over devices,
with zeros for the tokens of others. The output layer sends no logits: for each row, a device sends its largest logit, its sum
of exponentials and the logit of its target, three numbers in one round. Backward needs no communication.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.runtime.placed.mailbox import Mailbox


class Peers:
    """The other shards of a part, while they run the same block of the same micro-batch."""

    def __init__(self, mailbox: Mailbox, ranks: tuple[int, ...], tag: int) -> None:
        self._mailbox, self._ranks, self._tag = mailbox, ranks, tag

    def gather(self, tensor: Tensor) -> Tensor:
        """Every shard's, stacked in the order of the shards."""
        found = self._mailbox.swap(tensor, self._ranks, self._tag)
        return torch.stack([found[rank] for rank in self._ranks])


class Sharded(nn.Module):
    """A module that communicates with the other shards of its part."""

    peers: Peers | None = None
    """Set by the executor."""


def own_rows(num_rows: int, shard: int, num_shards: int) -> range:
    """The rows of a shard; sizes differ by one at most."""
    return range(num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards)


def shard_of(weight: Tensor, shard: int, num_shards: int) -> nn.Parameter:
    """A copy of a shard's rows, so that the whole table can be freed."""
    rows = own_rows(len(weight), shard, num_shards)
    return nn.Parameter(weight.detach()[rows.start : rows.stop].clone(), requires_grad=weight.requires_grad)


class RowShardedEmbedding(nn.Module):
    """A shard's share of the embedding of all tokens. Parts that use it are combined by `SUM`."""

    def __init__(self, weight: nn.Parameter, first: int) -> None:
        """`weight`: the rows from `first` on."""
        super().__init__()
        self.weight, self.first = weight, first

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens - self.first
        is_mine = (local >= 0) & (local < len(self.weight))
        found = functional.embedding(local.clamp(0, len(self.weight) - 1), self.weight)
        return found * is_mine.unsqueeze(-1).to(found.dtype)


class ClassShardedLoss(Sharded):
    """Output layer without bias and mean cross entropy, with some of the classes. Every shard returns the same loss."""

    def __init__(self, weight: nn.Parameter, first: int) -> None:
        """`weight`: the rows of the classes from `first` on."""
        super().__init__()
        self.weight, self.first = weight, first

    def forward(self, stream: Tensor, targets: Tensor) -> Tensor:
        assert self.peers is not None
        logits = functional.linear(stream, self.weight).flatten(0, -2)
        loss: Tensor = _ShardedCrossEntropy.apply(logits, targets.flatten() - self.first, self.peers)  # type: ignore[no-untyped-call]
        return loss


class _ShardedCrossEntropy(torch.autograd.Function):
    """log Σ exp(logit) - logit of the target, over the classes of all shards; the gradient is softmax - one-hot, of the shard's own classes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, local: Tensor, peers: Peers) -> Tensor:
        is_mine = (local >= 0) & (local < logits.shape[1])
        local = local.clamp(0, logits.shape[1] - 1)
        largest = logits.max(dim=1).values
        exponentials = (logits - largest[:, None]).exp_()
        of_target = logits.gather(1, local[:, None])[:, 0] * is_mine
        gathered = peers.gather(torch.stack([largest, exponentials.sum(dim=1), of_target]))
        top = gathered[:, 0].max(dim=0).values
        total = (gathered[:, 1] * (gathered[:, 0] - top).exp()).sum(dim=0)
        ctx.save_for_backward(exponentials.mul_(((largest - top).exp() / total)[:, None]), local, is_mine)
        return (total.log() + top - gathered[:, 2].sum(dim=0)).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        softmax, local, is_mine = ctx.saved_tensors
        found = softmax.clone()
        found.scatter_add_(1, local[:, None], -is_mine.to(found.dtype)[:, None])
        return found * (gradient / len(local)), None, None
