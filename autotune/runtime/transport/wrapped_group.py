"""A process group around another one: it passes on all calls that a subclass does not change."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions


class WrappedGroup(dist.ProcessGroup):
    """`inner`, until a subclass releases it: as long as anything holds a group, peers do not learn that a rank has left."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self._inner: dist.ProcessGroup | None = inner

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        assert self._inner is not None
        return self._inner.broadcast(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        assert self._inner is not None
        return self._inner.allgather(outputs, inputs, opts if opts is not None else AllgatherOptions())

    def barrier(self, opts: Any = None) -> Any:
        assert self._inner is not None
        return self._inner.barrier(opts if opts is not None else dist.BarrierOptions())

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        assert self._inner is not None
        return self._inner.send(tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803 - torch's name
        assert self._inner is not None
        return self._inner.recv(tensors, srcRank, tag)

    def alltoall_base(self, output: Any, given: Any, outputSplits: Any, inputSplits: Any, opts: Any = None) -> Any:  # noqa: N803 - torch's names
        assert self._inner is not None
        return self._inner.alltoall_base(output, given, outputSplits, inputSplits, *([] if opts is None else [opts]))
