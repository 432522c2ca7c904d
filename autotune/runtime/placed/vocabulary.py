"""Vocabulary-parallel parts: an embedding sharded by rows and an output layer with its loss sharded by classes, tied or not.

Parts of one table hold the same rows of it on a device as one tensor, so tied gradients accumulate in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn

from autotune.runtime.placed.parts import Part, Source
from autotune.runtime.placed.shards import ClassShardedLoss, RowShardedEmbedding, own_rows, shard_of
from autotune.runtime.placed.stages import Assembly, StageBlocks
from autotune.workloads.graph import Op

Layer = Callable[[nn.Parameter, int], nn.Module]
"""Made of a device's rows and the number of the first of them."""


@dataclass(kw_only=True)
class Vocabulary:
    """A table of one row per token, called `name` in the whole model."""

    name: str
    weight: nn.Parameter
    _shards: dict[tuple[int, int], nn.Parameter] = field(default_factory=dict)

    def add_embedding(
        self, assembly: Assembly, name: str, blocks: StageBlocks, *, data: int = 0, ops: Sequence[Op] = ()
    ) -> Source:
        """A part that embeds the tokens in a tensor of the batch."""
        part = Part(name=name, forward=blocks.forward, backward=blocks.backward, data=(data,))
        self._add(assembly, part, RowShardedEmbedding, ops)
        return Source(part=name)

    def add_loss(  # noqa: PLR0913 - a part's place in the program
        self,
        assembly: Assembly,
        name: str,
        blocks: StageBlocks,
        source: Source,
        *,
        data: int = 1,
        loss_weight: float = 1.0,
        ops: Sequence[Op] = (),
    ) -> None:
        """A part that computes logits and their cross entropy with the targets in a tensor of the batch."""
        part = Part(name=name, forward=blocks.forward, backward=blocks.backward, data=(data,))
        self._add(assembly, replace(part, inputs=(source,), loss_weight=loss_weight), ClassShardedLoss, ops)

    def _add(self, assembly: Assembly, part: Part, layer: Layer, ops: Sequence[Op]) -> None:
        part = replace(part, parameters=(self.name,), has_own_rows=True)
        assembly.add(part, partial(self._build, layer), ops)

    def _build(self, layer: Layer, shard: int, num_shards: int) -> nn.Module:
        key = shard, num_shards
        if key not in self._shards:
            self._shards[key] = shard_of(self.weight, shard, num_shards)
        return layer(self._shards[key], own_rows(len(self.weight), shard, num_shards).start)
