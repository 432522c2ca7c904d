"""Run by mpirun: `autotune ARGUMENTS` where rank $FAIL_RANK raises outside every trial, before the third order."""

from __future__ import annotations

import os
import sys

from autotune.cli.main import main
from autotune.runtime.control.mpi import mpi as control

original = control.Control.broadcast
orders = [0]


def broadcast(self: control.Control, message: object = None) -> object:
    answer = original(self, message)
    orders[0] += isinstance(answer, dict)
    if orders[0] == 3 and self.rank == int(os.environ["FAIL_RANK"]):
        raise OSError(28, "No space left on device")
    return answer


control.Control.broadcast = broadcast  # type: ignore[method-assign]
sys.exit(main())
