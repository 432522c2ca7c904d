"""A process group whose ring goes in another order than that of the ranks: the transport's rank r is our rank `order[r]`.

The all-reduces of gloo and MPI are rings in the order of their ranks. Where neighbours are not in order (islands, NICs, racks:
`workloads.topology.flat_ring`), such a ring crosses a slow edge more often than it must. The transport is opened with other
numbers, and this group translates them: roots, sources, targets and the parts of an all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from autotune.runtime.transport.wrapped_group import WrappedGroup


class ReorderedGroup(WrappedGroup):
    """`inner`, in which this rank has the number `order.index(rank)`. Threads: as for `inner`."""

    def __init__(self, inner: dist.ProcessGroup, order: Sequence[int]) -> None:
        super().__init__(inner)
        self._order = tuple(order)
        self._place_of = {rank: place for place, rank in enumerate(order)}

    def rank(self) -> int:
        return self._order[super().rank()]

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        return self._real.allreduce(tensors, opts if opts is not None else dist.AllreduceOptions())

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        translated = dist.BroadcastOptions()
        translated.rootRank, translated.rootTensor = self._place_of[opts.rootRank], opts.rootTensor
        translated.timeout = opts.timeout
        return self._real.broadcast(tensors, translated)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        options = opts if opts is not None else AllgatherOptions()
        return self._real.allgather([[parts[rank] for rank in self._order] for parts in outputs], inputs, options)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        return self._real.send(tensors, self._place_of[dstRank], tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        return self._real.recv(tensors, self._place_of[srcRank], tag)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return str(self._real.getBackendName())

    def close(self) -> None:
        """Release the real group, which informs its peers."""
        self._inner = None

    @property
    def _real(self) -> Any:
        assert self._inner is not None
        return self._inner
