"""Strangers at every port on which a rank of a job listens: the job goes on and ends as without them.

The ports are those of the control network, which close once it is open, of gloo, which are torch's, and of Open MPI.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.mpi.launch import run_command

MESSAGES = (
    b"",
    b"GET / HTTP/1.1\r\n\r\n" * 100,
    b"\0" * 4096,
    b"\xff" * 4096,
    b"\x80\x04\x95pickle",
    secrets.token_bytes(100_000),
)
LIMIT_S = 150.0
PER_LISTENER = 60


class Strangers(threading.Thread):
    """Connects to each port that any process below `root` listens on, and sends what no rank would; half of them stay."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(root)
        self._open: list[socket.socket] = []
        self.visits: dict[tuple[str, int], int] = {}
        self.has_ended = threading.Event()

    def run(self) -> None:
        while not self.has_ended.wait(0.05):
            for address in self._listeners():
                if self.visits.get(address, 0) < PER_LISTENER:
                    self._visit(address)

    def close(self) -> None:
        self.has_ended.set()
        self.join(20)
        for sock in self._open:
            sock.close()

    def _listeners(self) -> list[tuple[str, int]]:
        found = []
        with suppress(psutil.Error):
            for process in self._root.children(recursive=True):
                with suppress(psutil.Error):
                    found += [tuple(one.laddr) for one in process.net_connections("tcp4") if one.status == "LISTEN"]
        return found

    def _visit(self, address: tuple[str, int]) -> None:
        self.visits[address] = self.visits.get(address, 0) + 1
        with suppress(OSError):
            sock = socket.create_connection(("127.0.0.1", address[1]), timeout=1)
            sock.setblocking(False)
            self._open.append(sock)
            sock.send(MESSAGES[self.visits[address] % len(MESSAGES)])
            if self.visits[address] % 2:
                sock.close()


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_strangers_at_every_listener_do_not_disturb_a_sweep(tmp_path: Path) -> None:
    job = ("--workload", "mlp-tiny", "--cluster", "this-machine", "--trials", "2", "--steps", "2", "--rounds", "2")
    command = [sys.executable, "-m", "autotune", "sweep", "--ranks", "3", *job, "--json"]
    process = run_command(command, cwd=tmp_path)
    strangers = Strangers(process.pid)
    strangers.start()
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    finally:
        strangers.close()
    assert process.returncode == 0, err
    assert json.loads(out)
    assert strangers.visits, "the ranks have listened nowhere"
    assert "autotune: error" not in err
