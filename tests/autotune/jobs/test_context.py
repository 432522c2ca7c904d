"""A workload's costs, as a job context has them counted."""

from __future__ import annotations

import pytest

from autotune.jobs.context import capture_workload
from autotune.workloads.capture import LOSS
from autotune.workloads.registry import load_workload


@pytest.mark.parametrize("name", ["mlp", "vgg", "resnet", "gpt", "digits", "text"])
def test_samples_are_fetched_before_anything_is_counted(name: str) -> None:
    """To take 2 of 1,024 images is no work of a device, and surely not that of reading them all."""
    graph = capture_workload(load_workload(name, {}), 0)
    loss = next(op for op in graph.ops if op.name == LOSS)
    scalar_bytes = 8
    assert loss.fixed_bytes <= scalar_bytes
