"""Process groups bootstrapped from the MPI ranks: opened for each trial, so that a failed trial leaves nothing behind.

The transport interface is torch's `ProcessGroup`: gloo and NCCL are torch's, MPI is ours, and emulated links wrap any of
them. Owner shards and parameter servers are messages over gloo, and wrap the real or the paced group. A rank that releases
its group closes its connections, which is how gloo peers learn of a failure.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from autotune.runtime.control.mpi import Control
from autotune.runtime.device import CPU, DeviceHandle
from autotune.runtime.transport.accelerator_group import AcceleratorGroup
from autotune.runtime.transport.link_check import host_representatives
from autotune.runtime.transport.link_clock import LinkClocks
from autotune.runtime.transport.mpi_group import MpiGroup
from autotune.runtime.transport.network_store import NetworkStore
from autotune.runtime.transport.open_group import OpenGroup
from autotune.runtime.transport.paced_group import PacedGroup
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.runtime.transport.staged_group import StagedGroup
from autotune.runtime.transport.traced_group import TracedGroup
from autotune.simulate.collectives import owned_shares, server_shares
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import COLLECTIVES, TRANSPORTS
from autotune.workloads.plan.choices import load

_JOIN_S = 10.0


class Groups:
    """Opens the process groups of a job. Made once per job, by all ranks together.

    Not thread-safe: the thread that trains makes all calls, the same calls in the same order on all ranks.
    """

    def __init__(self, control: Control, cluster: Cluster, device: DeviceHandle = CPU) -> None:
        """`device`: of this rank's tensors; ranks may differ."""
        self._control = control
        self._cluster = cluster
        self._device = device
        self._epoch = 0
        self._threads: list[threading.Thread] = []
        hosts = control.share(socket.gethostname())
        self._one_machine = len(set(hosts)) == 1
        self._store = NetworkStore(control.network())
        self._clocks = self._map_clocks() if cluster.paces_links else None

    @contextmanager
    def open(  # noqa: PLR0913 - the communication configuration of a plan
        self,
        transport: str,
        *,
        collective: str = "ring",
        servers: Sequence[int] = (),
        shares: Sequence[float] = (),
        timeout_s: float,
        traced: bool = False,
    ) -> Iterator[dist.ProcessGroup]:
        """A process group, open during the context. Everything that holds it must release it before the context ends.

        `shares`: the owner shares; empty: derived from the links in the cluster file.
        """
        owned = self._shares(transport, collective, servers, shares)
        self._epoch += 1
        layers = [self._real_group(transport, timeout_s)]
        is_host_only = TRANSPORTS[transport].device == CPU.device.type
        failed = True
        try:
            if isinstance(layers[0], AcceleratorGroup):
                layers[0].watch(self._control.network())
            self._wrap(layers, owned, traced=traced and is_host_only)
            if is_host_only and self._device.is_accelerator:
                layers.append(StagedGroup(layers[-1], self._device))
            yield layers[-1]
            failed = False
        finally:
            while layers:
                self._close(layers.pop(), failed=failed)
            if not failed:
                self.join()

    @property
    def host_representatives(self) -> tuple[int, ...]:
        """A rank of each host."""
        return host_representatives(self._cluster.host_of_rank)

    def set_owners(self, group: dist.ProcessGroup, shares: Sequence[float]) -> None:
        """Set the owner shares of an open group; called by all ranks, with nothing in flight."""
        inner: Any = group
        while not isinstance(inner, ShardGroup):
            inner = inner._inner
        inner.set_owners(shares or owned_shares(self._cluster))

    def set_links(self, cluster: Cluster) -> None:
        """Set the speeds of paced links to those of `cluster`."""
        if self._clocks is not None:
            self._clocks.set_links(cluster)

    def join(self) -> None:
        """Wait for the threads of closed groups: one that releases torch objects while Python exits would crash the process."""
        for thread in self._threads:
            thread.join(timeout=_JOIN_S)
        self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _shares(
        self, transport: str, collective: str, servers: Sequence[int], shares: Sequence[float]
    ) -> list[float] | None:
        """The owner share of each rank in an all-reduce; None: the transport's own all-reduce."""
        if collective == "ring":
            return None
        if not COLLECTIVES[collective].is_runnable:
            raise SpecError(
                f"collective {collective!r} is predicted by `autotune simulate` but no job runs it: use ring, shards or server"
            )
        if not TRANSPORTS[transport].carries_shards:
            raise SpecError(
                f"collective {collective!r} is made of messages from rank to rank, which transport {transport!r} does not "
                "carry here: use transport gloo, or collective ring"
            )
        if collective == "shards":
            return list(shares) or owned_shares(self._cluster)
        size = self._control.size
        if not servers or not all(0 <= rank < size for rank in servers) or len(set(servers)) < len(servers):
            raise SpecError(f"servers are {list(servers)}: name one or more of the ranks 0 to {size - 1}, each once")
        return server_shares(size, servers)

    def _wrap(self, layers: list[dist.ProcessGroup], shares: list[float] | None, *, traced: bool) -> None:
        """Wrap the real group, from the inside out."""
        if self._clocks is not None:
            layers.append(PacedGroup(layers[-1], self._cluster, self._clocks, epoch=self._epoch))
        if shares is not None:
            layers.append(ShardGroup(layers[-1], shares))
        # Emulated links always record their collectives, but of owner shards they carry only the messages.
        paced = self._clocks is not None
        if (traced and not paced) or (paced and shares is not None):
            recorder = TracedGroup(layers[-1])
            recorder.recording = paced
            layers.append(recorder)

    def _close(self, layer: dist.ProcessGroup, *, failed: bool) -> None:
        if isinstance(layer, MpiGroup):
            self._threads.append(layer.close(failed=failed))
        elif isinstance(layer, PacedGroup | ShardGroup):
            self._threads.append(layer.close())
        elif isinstance(layer, StagedGroup):
            self._threads += layer.close()
        elif isinstance(layer, AcceleratorGroup):
            self._threads += layer.close(failed=failed)
        elif isinstance(layer, TracedGroup):
            layer.close()

    def _real_group(self, transport: str, timeout_s: float) -> dist.ProcessGroup:
        request = OpenGroup(
            control=self._control,
            store=PrefixStore(f"group{self._epoch}", self._store),
            timeout_s=timeout_s,
            gloo_device=self._gloo_device(),
            device=self._device,
        )
        group: dist.ProcessGroup = load(TRANSPORTS[transport].opened_by)(request)
        return group

    def _gloo_device(self) -> Any:
        if self._one_machine:
            return dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            return dist.ProcessGroupGloo.create_device(interface=interface)
        return dist.ProcessGroupGloo.create_device(hostname=socket.gethostname())

    def _map_clocks(self) -> LinkClocks:
        if not self._one_machine:
            raise SpecError(
                f"cluster {self._cluster.name!r} is emulated by pacing, which needs all ranks on one machine: "
                "start them on one, or use --cluster this-machine to tune the real devices"
            )
        path = self._control.broadcast(LinkClocks.create(self._cluster) if self._control.is_leader else None)
        clocks = LinkClocks(self._cluster, path)
        self._control.share(None)
        if self._control.is_leader:
            Path(path).unlink()
        return clocks
