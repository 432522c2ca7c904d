"""A long cable for a lab whose kernel has no netem: joins a host to its switch by two TAP devices, holding every frame back.

    python delay_line.py SWITCH_NAMESPACE PORT HOST_NAMESPACE DELAY_S

Prints "ready" when both devices are there; the caller sets them up. The delay is added each way. Kernel TCP, token buckets and
everything above see an ordinary network.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from pathlib import Path

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES = 65536


def make_tap(namespace: str, name: str) -> int:
    """A TAP device in a network namespace; frames that the kernel sends out of it are read here."""
    with (Path("/run/netns") / namespace).open() as entry:
        if ctypes.CDLL(None, use_errno=True).setns(entry.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def take(fd: int, held: deque[tuple[float, bytes]], due_s: float) -> None:
    """Everything that waits to be read."""
    try:
        while True:
            held.append((due_s, os.read(fd, FRAME_BYTES)))
    except (BlockingIOError, OSError):
        return


def pass_on(held: deque[tuple[float, bytes]], fd: int, now_s: float) -> None:
    """Everything that was held long enough; a device that is not up yet loses its frames, as a cable would."""
    while held and held[0][0] <= now_s:
        frame = held.popleft()[1]
        try:
            os.write(fd, frame)
        except OSError:
            continue


def main(switch: str, port: str, host: str, delay_s: float) -> None:
    ends = [make_tap(switch, port), make_tap(host, "eth0")]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    held: list[deque[tuple[float, bytes]]] = [deque(), deque()]
    while True:
        due = [frames[0][0] for frames in held if frames]
        wait_s = max(min(due) - time.monotonic(), 0.0) if due else 1.0
        readable, _, _ = select.select(ends, [], [], wait_s)
        for index, fd in enumerate(ends):
            if fd in readable:
                take(fd, held[index], time.monotonic() + delay_s)
            pass_on(held[1 - index], fd, time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
