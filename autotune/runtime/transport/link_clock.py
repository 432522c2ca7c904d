"""Emulated links: one virtual clock per host uplink and one per downlink, shared by all transfers over the link.

A clock holds the time at which its link is free. A transfer starts when its sender is ready and occupies the link for
bytes / bandwidth, so two concurrent transfers take as long as their bytes together. The clocks are in a small shared file
because ranks of one emulated host are separate processes. All ranks must therefore run on one machine, with one monotonic
clock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from autotune.simulate.collectives import Load
from autotune.workloads.cluster import Cluster

_SLOTS = 4096
"""Collectives that may be in flight at once; slots are reused after that many."""
_DOUBLE = struct.Struct("d")


class LinkClocks:
    """The clocks of all links of a cluster, in a file that every rank maps.

    Any thread of any rank may call `reserve` and `finish_collective`: a thread lock and a file lock guard the clocks. `post`
    writes a slot of its own and takes no lock. `set_links` and `close` are called with nothing in flight.
    """

    def __init__(self, cluster: Cluster, path: str) -> None:
        self._hosts_now = cluster.hosts
        self._ranks = len(cluster.devices)
        self._hosts = len(cluster.hosts)
        self._fd = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._fd, file_bytes(cluster))
        self._one_thread = threading.Lock()

    @staticmethod
    def create(cluster: Cluster) -> str:
        """Create a clock file. The caller removes it after every rank has mapped it."""
        fd, path = tempfile.mkstemp(prefix="autotune-links-")
        os.truncate(fd, file_bytes(cluster))
        os.close(fd)
        return path

    def set_links(self, cluster: Cluster) -> None:
        """Set the link speeds of the following transfers: the same hosts, as a scenario has changed them."""
        self._hosts_now = cluster.hosts

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)

    def reserve(self, loads: Sequence[Load], start_s: float) -> float:
        """Put `loads` on their links from `start_s` on; the time at which the last byte has arrived."""
        with self._locked():
            return self._reserve(loads, start_s)

    def post(self, sequence: int, rank: int) -> None:
        """Record that this rank has joined collective number `sequence`."""
        self._write(self._slot(sequence) + 2 + rank, time.monotonic())

    def finish_collective(
        self, sequence: int, key: int, loads: Sequence[Load], latency_s: float
    ) -> tuple[float, float]:
        """Start and end of a collective that every rank has joined, the same on every rank: the first call reserves.

        The real collective has completed when this is called, so every rank's post is in the file. `key` is unique to
        the collective and distinguishes a new slot from an old one.
        """
        slot = self._slot(sequence)
        with self._locked():
            start_s = max(self._read(slot + 2 + rank) for rank in range(self._ranks))
            if self._read(slot) != key:
                self._write(slot + 1, self._reserve(loads, start_s) + latency_s)
                self._write(slot, key)
            return start_s, self._read(slot + 1)

    def _reserve(self, loads: Sequence[Load], start_s: float) -> float:
        end_s = start_s
        for load in loads:
            link = self._hosts_now[load.host].link
            if link is None:
                continue
            for clock, num_bytes, speed in (
                (2 * load.host, load.up_bytes, link.up_bytes_per_s),
                (2 * load.host + 1, load.down_bytes, link.down_bytes_per_s),
            ):
                if num_bytes > 0:
                    free_s = max(start_s, self._read(clock)) + num_bytes / speed
                    self._write(clock, free_s)
                    end_s = max(end_s, free_s)
        return end_s

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # lockf excludes processes, not threads: one thread delivers collectives, another one posts messages.
        with self._one_thread:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _slot(self, sequence: int) -> int:
        return 2 * self._hosts + (sequence % _SLOTS) * (2 + self._ranks)

    def _read(self, index: int) -> float:
        return float(_DOUBLE.unpack_from(self._map, index * _DOUBLE.size)[0])

    def _write(self, index: int, value: float) -> None:
        _DOUBLE.pack_into(self._map, index * _DOUBLE.size, value)


def file_bytes(cluster: Cluster) -> int:
    """Size of a clock file: two clocks a host, then per slot a key, an end time, and a post time per rank."""
    return _DOUBLE.size * (2 * len(cluster.hosts) + _SLOTS * (2 + len(cluster.devices)))
