"""Process groups bootstrapped from the MPI ranks: one per trial, so that a failed trial leaves nothing behind.

The transport interface is torch's own `ProcessGroup`: gloo and NCCL are torch's, MPI is ours, and emulated links wrap
any of them. Shards and parameter servers are messages over gloo, paced or not, and wrap that in turn. A rank that drops
its group closes its connections, which is how gloo peers learn of a failure.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from autotune.runtime.control.mpi import Control
from autotune.runtime.transport.link_check import stand_ins
from autotune.runtime.transport.link_clock import LinkClocks
from autotune.runtime.transport.mpi_group import MpiGroup
from autotune.runtime.transport.paced_group import PacedGroup
from autotune.runtime.transport.shard_group import ShardGroup
from autotune.runtime.transport.traced_group import TracedGroup
from autotune.simulate.collectives import owned_shares, server_shares
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import CommPlan

_JOIN_S = 10.0


class KeptGroups:
    """The groups of a job whose plan changes on the way: opened when a plan first needs them, kept until `leave` ends."""

    def __init__(self, groups: Groups, leave: ExitStack, *, timeout_s: float) -> None:
        self._groups, self._leave, self._timeout_s = groups, leave, timeout_s
        self._kept: dict[tuple[str, str, tuple[int, ...]], tuple[dist.ProcessGroup, tuple[float, ...]]] = {}

    def of(self, comm: CommPlan) -> dist.ProcessGroup:
        """The group of a plan; called by all ranks together, with nothing under way."""
        key = (comm.transport, comm.collective, comm.servers)
        if key not in self._kept:
            opened = self._groups.open(
                comm.transport,
                collective=comm.collective,
                servers=comm.servers,
                shares=comm.shares,
                timeout_s=self._timeout_s,
            )
            self._kept[key] = self._leave.enter_context(opened), comm.shares
            self._leave.callback(self._kept.clear)  # before any of them is closed
        group, shares = self._kept[key]
        if shares != comm.shares:
            self._groups.set_owners(group, comm.shares)
            self._kept[key] = group, comm.shares
        return group


class Groups:
    """Opens the process group of each trial. Made once per job, by all ranks together."""

    def __init__(self, control: Control, cluster: Cluster) -> None:
        self._control = control
        self._cluster = cluster
        self._epoch = 0
        self._threads: list[threading.Thread] = []
        hosts = control.share(socket.gethostname())
        self._one_machine = len(set(hosts)) == 1
        self._store = self._make_store(hosts[0])
        control.share(None)  # rank 0's store lives until all ranks have found it
        self._clocks = self._map_clocks() if cluster.paces_links else None

    @contextmanager
    def open(  # noqa: PLR0913 - what a plan says of its group
        self,
        transport: str,
        *,
        collective: str = "ring",
        servers: Sequence[int] = (),
        shares: Sequence[float] = (),
        timeout_s: float,
        traced: bool = False,
    ) -> Iterator[dist.ProcessGroup]:
        """A group for one trial. Everything that holds the group must be let go before the context ends.

        `shares`: of shards, who owns how much; empty: as the links that the cluster file states call for.
        """
        owned = self._shares(transport, collective, servers, shares)
        self._epoch += 1
        layers = [self._real_group(transport, timeout_s)]
        failed = True
        try:
            self._wrap(layers, owned, traced=traced)
            yield layers[-1]
            failed = False
        finally:
            while layers:
                self._close(layers.pop(), failed=failed)
            if not failed:
                self.join()

    @property
    def stand_ins(self) -> tuple[int, ...]:
        """A rank of each host."""
        return stand_ins(self._cluster.host_of_rank)

    def set_owners(self, group: dist.ProcessGroup, shares: Sequence[float]) -> None:
        """Shards of an open group get other owners: said by all ranks, with nothing under way."""
        inner: Any = group
        while not isinstance(inner, ShardGroup):
            inner = inner._inner
        inner.set_owners(shares or owned_shares(self._cluster))

    def set_links(self, cluster: Cluster) -> None:
        """Paced links become as fast as in this mix."""
        if self._clocks is not None:
            self._clocks.set_links(cluster)

    def join(self) -> None:
        """Wait for the groups' threads: one that is still letting go of torch objects when Python ends takes it down."""
        for thread in self._threads:
            thread.join(timeout=_JOIN_S)
        self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _shares(
        self, transport: str, collective: str, servers: Sequence[int], shares: Sequence[float]
    ) -> list[float] | None:
        """What each rank owns of an all-reduce; None: the transport's own ring carries it out."""
        if collective == "ring":
            return None
        if collective not in ("shards", "server"):
            raise SpecError(
                f"collective {collective!r} is predicted by `autotune simulate` but no job runs it: use ring, shards or server"
            )
        if transport != "gloo":
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
        """Add to the real group what goes round it, inside out."""
        if self._clocks is not None:
            layers.append(PacedGroup(layers[-1], self._cluster, self._clocks, epoch=self._epoch))
        if shares is not None:
            layers.append(ShardGroup(layers[-1], shares))
        # Emulated links always note what they carry, but of shards they see only the messages.
        paced = self._clocks is not None
        if (traced and not paced) or (paced and shares is not None):
            noted = TracedGroup(layers[-1])
            noted.recording = paced
            layers.append(noted)

    def _close(self, layer: dist.ProcessGroup, *, failed: bool) -> None:
        if isinstance(layer, MpiGroup):
            self._threads.append(layer.close(failed=failed))
        elif isinstance(layer, PacedGroup | ShardGroup):
            self._threads.append(layer.close())
        elif isinstance(layer, TracedGroup):
            layer.close()

    def _real_group(self, transport: str, timeout_s: float) -> dist.ProcessGroup:
        if transport == "mpi":
            return MpiGroup(self._control.comm.Dup(), timeout_s=timeout_s)
        store = PrefixStore(f"group{self._epoch}", self._store)
        rank, size, timeout = self._control.rank, self._control.size, timedelta(seconds=timeout_s)
        group = dist.ProcessGroup(store, rank, size)
        if transport == "gloo":
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = timeout
            options._devices = [self._gloo_device()]
            backend: Any = dist.ProcessGroupGloo(store, rank, size, options)
            kind, device = dist.ProcessGroup.BackendType.GLOO, torch.device("cpu")
        elif transport == "nccl" and dist.is_nccl_available():
            nccl_options = dist.ProcessGroupNCCL.Options()
            nccl_options._timeout = timeout
            backend = dist.ProcessGroupNCCL(store, rank, size, nccl_options)
            kind, device = dist.ProcessGroup.BackendType.NCCL, torch.device("cuda")
        else:
            raise SpecError(
                f"transport {transport!r} is not available here: use gloo or mpi, or install a CUDA build of torch"
            )
        group._set_default_backend(kind)
        group._register_backend(device, kind, backend)
        return group

    def _gloo_device(self) -> Any:
        if self._one_machine:
            return dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
        if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
            return dist.ProcessGroupGloo.create_device(interface=interface)
        return dist.ProcessGroupGloo.create_device(hostname=socket.gethostname())

    def _make_store(self, leader_host: str) -> Store:
        address = "127.0.0.1" if self._one_machine else leader_host
        if self._control.is_leader:
            store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
            self._control.broadcast(store.port)
            return store
        return TCPStore(address, self._control.broadcast(), is_master=False)

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
