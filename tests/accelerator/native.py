"""Builds and loads engine_hooks.cpp: the part of the device that torch's C++ side calls.

Built with the headers of the installed torch, once per version of torch and of the source, into the directory for
temporary files. It needs a C++ compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("engine_hooks.cpp")
_NUMBER = ctypes.c_int64


class Callbacks(ctypes.Structure):
    """What the C++ side calls, in the order of its own structure."""

    _fields_ = (
        ("record", ctypes.CFUNCTYPE(_NUMBER, _NUMBER, _NUMBER)),
        ("block", ctypes.CFUNCTYPE(None, _NUMBER, _NUMBER, _NUMBER)),
        ("destroy", ctypes.CFUNCTYPE(None, _NUMBER)),
        ("query", ctypes.CFUNCTYPE(_NUMBER, _NUMBER)),
        ("synchronize", ctypes.CFUNCTYPE(None, _NUMBER)),
        ("new_stream", ctypes.CFUNCTYPE(_NUMBER, _NUMBER, _NUMBER)),
        ("query_stream", ctypes.CFUNCTYPE(_NUMBER, _NUMBER, _NUMBER)),
        ("synchronize_stream", ctypes.CFUNCTYPE(None, _NUMBER, _NUMBER)),
        ("synchronize_device", ctypes.CFUNCTYPE(None, _NUMBER)),
    )


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    return shutil.which("g++") or shutil.which("c++")


def built() -> Path:
    """The library, built if it is not there; ranks that build at the same time each write a file of their own."""
    content = SOURCE.read_bytes() + torch.__version__.encode() + str(torch.__file__).encode()
    name = f"fgpu-{os.getuid()}-{hashlib.sha256(content).hexdigest()[:16]}.so"
    target = Path(tempfile.gettempdir()) / name
    if target.is_file() and target.stat().st_uid == os.getuid():
        return target
    command = compiler()
    if command is None:
        raise ImportError("the fake accelerator needs a C++ compiler: install g++")
    root = Path(torch.__file__).parent
    own = target.with_suffix(f".{os.getpid()}.so")
    flags = ["-O1", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", f"-L{root / 'lib'}"]
    subprocess.run([command, *flags, str(SOURCE), "-o", str(own), "-lc10", "-ltorch_cpu"], check=True, timeout=300)
    own.replace(target)
    return target


class Native:
    """The C++ side. Current device and current stream are per thread; any thread may call."""

    def __init__(self, devices: int, callbacks: dict[str, Callable[..., object]]) -> None:
        self._library = ctypes.PyDLL(str(built()))
        self._library.fgpu_stream.restype = _NUMBER
        self._library.fgpu_set_stream.argtypes = (ctypes.c_int, _NUMBER)
        types = dict(Callbacks._fields_)
        self._callbacks = Callbacks(**{name: types[name](call) for name, call in callbacks.items()})
        self._library.fgpu_install(devices, ctypes.byref(self._callbacks))
        self.device: Callable[[], int] = self._library.fgpu_device
        self.set_device: Callable[[int], object] = self._library.fgpu_set_device
        self.stream: Callable[[int], int] = self._library.fgpu_stream
        self.set_stream: Callable[[int, int], object] = self._library.fgpu_set_stream
