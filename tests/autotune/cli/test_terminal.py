"""Does a stream end on a terminal: decided by the streams of the launcher, not by the pty that mpirun gives every rank."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import terminal
from autotune.cli.terminal import STDERR, STDOUT, is_terminal, terminal_width

COLUMNS = 97


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def screen() -> Iterator[int]:
    """A terminal of 97 columns."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    yield side
    os.close(side)
    os.close(main)


@pytest.fixture
def pipe() -> Iterator[int]:
    read, write = os.pipe()
    yield write
    os.close(read)
    os.close(write)


@pytest.fixture
def under_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")


def launcher_has(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Make our parent's standard output be `target`."""
    real = Path.readlink

    def readlink(path: Path) -> Path:
        return Path(target) if str(path) == f"/proc/{os.getppid()}/fd/{STDOUT}" else real(path)

    monkeypatch.setattr(Path, "readlink", readlink)


# --- started without mpirun --------------------------------------------------------------------------------------------


def test_a_terminal_is_a_terminal_with_its_width(screen: int) -> None:
    assert is_terminal(screen)
    assert terminal_width(screen) == COLUMNS


def test_a_pipe_is_not_and_has_no_width(pipe: int) -> None:
    assert not is_terminal(pipe)
    assert terminal_width(pipe) is None


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_ci_and_a_dumb_terminal_are_no_terminal(
    screen: int, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert not is_terminal(screen)


# --- under mpirun ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("under_mpirun")
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("target", ["/tmp/log.txt", "pipe:[123]", "/dev/null"])
def test_under_mpirun_a_redirected_launcher_is_no_terminal(
    screen: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has a pty of its own: that our own stream is one means nothing."""
    launcher_has(monkeypatch, target)
    monkeypatch.setattr(os, "isatty", lambda _fd: True)
    assert not is_terminal(STDOUT)


@pytest.mark.usefixtures("under_mpirun")
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_under_mpirun_the_launchers_terminal_counts_with_its_width(
    screen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher_has(monkeypatch, os.ttyname(screen))
    assert is_terminal(STDOUT)
    assert terminal_width(STDOUT) == COLUMNS


@pytest.mark.usefixtures("under_mpirun")
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_under_mpirun_a_terminal_that_cannot_be_opened_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher_has(monkeypatch, "/dev/pts/999999")
    assert terminal_width(STDOUT) is None


@pytest.mark.usefixtures("under_mpirun")
def test_a_launcher_that_cannot_be_inspected_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> Path:
        raise PermissionError

    monkeypatch.setattr(Path, "readlink", refuse)
    assert not is_terminal(STDERR)


@pytest.mark.usefixtures("under_mpirun")
def test_off_linux_a_job_under_mpirun_has_no_terminal(screen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal.sys, "platform", "darwin")
    assert not is_terminal(screen)
