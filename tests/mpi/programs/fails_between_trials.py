"""Run by mpirun: `autotune ARGUMENTS` where rank $FAIL_RANK raises outside every trial, before the third broadcast of a plan."""

from __future__ import annotations

import os
import sys

from autotune.cli.main import main
from autotune.runtime.control import mpi as control

original = control.Control.broadcast
num_broadcasts = [0]


def broadcast(self: control.Control, message: object = None) -> object:
    answer = original(self, message)
    num_broadcasts[0] += isinstance(answer, dict)
    if num_broadcasts[0] == 3 and self.rank == int(os.environ["FAIL_RANK"]):
        raise OSError(28, "No space left on device")
    return answer


control.Control.broadcast = broadcast  # type: ignore[method-assign]
sys.exit(main())
