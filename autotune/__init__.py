"""Train a neural network fast on whatever mix of devices you have.

    import autotune

    model.to(autotune.device())
    with autotune.parallelize(model, optimizer, "plan.json") as job:
        for batch in job.batches(dataset):
            ...

See `autotune.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api import Parallel, device, parallelize

__all__ = ["Parallel", "device", "parallelize"]


def __getattr__(name: str) -> Any:
    """Torch is loaded when a script asks for it, not by every command."""
    if name not in __all__:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from autotune import api  # noqa: PLC0415

    return getattr(api, name)
