"""A knob of one module: the order of partitions."""

from __future__ import annotations

from autotune.space import space  # noqa: F401 - after the knobs that are there
from autotune.space.comm_knobs import is_scheduled
from autotune.space.knob import KNOBS, Knob, Reset, Values, with_comm

KNOBS.register(
    Knob(
        name="order",
        text="which partition is sent first",
        values=lambda _scope: Values(choices=("fifo", "layer")),
        write=lambda plan, value, _scope: with_comm(plan, priority=value),
        read=lambda plan: plan.comm.priority,
        applies=is_scheduled,
        after=("reducer",),
        resets=lambda best, _default: [Reset(title="order", text="by layer", plan=with_comm(best, priority="layer"))],
    )
)
