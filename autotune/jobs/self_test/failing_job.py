"""A job that fails on purpose: `python -m autotune.jobs.self_test.failing_job HOW RANK DEVICE TRANSPORT [MODULE …]`.

The ranks sum once, then rank RANK leaves while the others wait for its part of the next sum. Each prints when the first sum was
done, on the monotonic clock of its host: what is longer than the pause after it is the time until the rank was released.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PAUSE_S = 0.5
TOGETHER = "together at "
KILLED, RAISED = "killed", "raises"
_GROUP_S = 60.0


def main(arguments: Sequence[str]) -> None:
    """`DEVICE`: TYPE:INDEX, or cpu. `MODULE`: what --load names."""
    how, failing, place, transport, *modules = arguments
    sys.path.append(str(Path.cwd()))
    for name in modules:
        importlib.import_module(name)
    import torch  # noqa: PLC0415 - a module of the user's may have to come first
    import torch.distributed as dist  # noqa: PLC0415

    from autotune.runtime.control.start import start_control  # noqa: PLC0415
    from autotune.runtime.device import handle  # noqa: PLC0415
    from autotune.runtime.transport.groups import Groups  # noqa: PLC0415
    from autotune.workloads.cluster import load_cluster  # noqa: PLC0415

    torch.set_num_threads(1)
    device = handle(torch.device(place))
    device.bind()
    control = start_control()
    control.network()
    groups = Groups(control, load_cluster("this-machine").for_ranks(control.size), device)
    with groups.open(transport, timeout_s=_GROUP_S) as group:
        data = torch.ones(1000, device=device.device)
        group.allreduce([data], dist.AllreduceOptions()).wait()
        device.synchronize()
        sys.stdout.write(f"{TOGETHER}{time.monotonic()}\n")
        sys.stdout.flush()
        if control.rank == int(failing):
            _leave(how)
        group.allreduce([data], dist.AllreduceOptions()).wait()
        device.synchronize()


def _leave(how: str) -> None:
    time.sleep(PAUSE_S)
    if how == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("this rank fails on purpose")


if __name__ == "__main__":
    main(sys.argv[1:])
