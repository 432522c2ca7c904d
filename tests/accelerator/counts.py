"""How often the host waited for a device, by kind and by thread."""

from __future__ import annotations

import threading
from collections import Counter


def thread_name() -> str:
    """The thread's name; those of the autograd engine have none of their own."""
    name = threading.current_thread().name
    return "autograd" if name.startswith("Dummy-") else name


class Counts:
    """Counters that any thread may add to, read and reset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._syncs: Counter[tuple[str, str]] = Counter()
        self._emulation_waits: Counter[str] = Counter()
        self._launches: Counter[str] = Counter()
        self._elsewhere: Counter[str] = Counter()

    def host_sync(self, kind: str) -> None:
        with self._lock:
            self._syncs[kind, thread_name()] += 1

    def emulation_wait(self) -> None:
        with self._lock:
            self._emulation_waits[thread_name()] += 1

    def launch_elsewhere(self) -> None:
        with self._lock:
            self._elsewhere[thread_name()] += 1

    def launch(self, name: str) -> None:
        with self._lock:
            self._launches[name] += 1

    def host_syncs(self) -> Counter[tuple[str, str]]:
        """Waits of the host, by (kind, thread name)."""
        with self._lock:
            return Counter(self._syncs)

    def emulation_waits(self) -> Counter[str]:
        """Waits that only this fake has, by thread name."""
        with self._lock:
            return Counter(self._emulation_waits)

    def launches(self) -> Counter[str]:
        """Operations launched, by name."""
        with self._lock:
            return Counter(self._launches)

    def launches_elsewhere(self) -> Counter[str]:
        """Operations launched on a device that was not the thread's current one, by thread name."""
        with self._lock:
            return Counter(self._elsewhere)

    def reset(self) -> None:
        with self._lock:
            self._syncs.clear()
            self._emulation_waits.clear()
            self._launches.clear()
            self._elsewhere.clear()


counts = Counts()
