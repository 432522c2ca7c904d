"""The device of a rank as lines: emulated devices exactly, on a clock that only pacing advances."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from autotune.jobs.context import capture_workload
from autotune.jobs.device_profile import rank_profile
from autotune.runtime.device import cpu
from autotune.runtime.emulate import device_pacer
from autotune.runtime.probe import op_probe
from autotune.runtime.probe.op_probe import OpProbe, sizes_to_measure
from autotune.runtime.train.trainer import RankContext
from autotune.simulate.roofline import compute_s, op_s
from autotune.workloads.cluster import Device
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.registry import load_workload

SLOW = Device(name="slow", flops_per_s=1e6, memory_bytes_per_s=1e7, launch_s=1e-3)
SIZES = (4, 8, 16, 32)
WORKLOAD = load_workload("mlp-tiny", {})
GRAPH = capture_workload(WORKLOAD, seed=0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only sleeping advances: of the probe, of its device's stamps and of the pacer."""
    fake = SimpleNamespace(now=100.0)

    def sleep(seconds: float) -> None:
        fake.now += seconds

    fake.perf_counter = fake.monotonic = lambda: fake.now
    fake.sleep = sleep
    for module in (cpu, device_pacer, op_probe):
        monkeypatch.setattr(module, "time", fake)
    return fake


def rank_context(device: Device = SLOW) -> RankContext:
    return RankContext(rank=0, device=device, torch_device=torch.device("cpu"), graph=GRAPH)


def test_an_emulated_devices_ops_take_the_time_of_the_cost_function(clock: SimpleNamespace) -> None:
    found = OpProbe(WORKLOAD, rank_context(), seed=0).measure(SIZES, rounds=3, budget_s=1.0)
    for size in found:
        assert size.step.compute_s == pytest.approx(compute_s(GRAPH, SLOW, size.num_samples), rel=1e-6)
        for op in GRAPH.ops[:-1]:
            both = op_s(op, SLOW, size.num_samples), op_s(op, SLOW, size.num_samples, backward=True)
            assert size.op_s(op.name) == pytest.approx(both, abs=1e-9), op.name


def test_the_ops_sum_to_the_step_and_the_rest_is_recorded(clock: SimpleNamespace) -> None:
    found = OpProbe(WORKLOAD, rank_context(), seed=0).measure(SIZES, rounds=3, budget_s=1.0)
    profile = rank_profile(GRAPH, found, rank=0, device="slow", host="host0")
    for step in profile.steps:
        assert step.ops_s == pytest.approx(step.compute_s)
        assert step.unattributed_s == pytest.approx(0.0, abs=1e-9)
    total = sum(op.forward.seconds(16) + op.backward.seconds(16) for op in profile.ops)
    assert total == pytest.approx(profile.compute.seconds(16), rel=0.02)
    assert (profile.compute.low, profile.compute.high) == (4, 32)
    assert [op.name for op in profile.ops] == [op.name for op in GRAPH.ops]


def test_memory_grows_with_the_batch_by_what_autograd_keeps(clock: SimpleNamespace) -> None:
    found = OpProbe(WORKLOAD, rank_context(), seed=0).measure(SIZES, rounds=3, budget_s=1.0)
    profile = rank_profile(GRAPH, found, rank=0, device="slow", host="host0")
    assert profile.memory is not None
    assert profile.memory.bytes_per_sample == pytest.approx(GRAPH.saved_bytes_per_sample, rel=0.2)
    assert profile.memory.fixed_bytes >= 3 * GRAPH.param_bytes  # parameters, gradients, momentum
    assert profile.memory.worst_error is not None
    assert profile.memory.worst_error < 0.01


def test_a_real_device_is_measured_without_a_pacer() -> None:
    real = RankContext(rank=0, device=Device(name="cpu"), torch_device=torch.device("cpu"))
    found = OpProbe(WORKLOAD, real, seed=0).measure((4, 8), rounds=3, budget_s=1.0)
    assert all(size.step.compute_s > 0 and size.step.late_s == 0 for size in found)
    assert all(size.op_s("1")[0] > 0 and size.op_s("1")[1] > 0 for size in found)


def test_rounds_end_with_the_budget_but_not_before_the_third(clock: SimpleNamespace) -> None:
    probe = OpProbe(WORKLOAD, rank_context(), seed=0)
    passes: list[int] = []
    original = probe.split_pass
    probe.split_pass = lambda size: passes.append(size) or original(size)  # type: ignore[func-returns-value, method-assign]
    probe.measure((4,), rounds=100, budget_s=0.0)
    assert len(passes) == 1 + 3


def test_a_batch_that_does_not_fit_is_refused(clock: SimpleNamespace) -> None:
    tight = Device(name="tight", flops_per_s=1e6, memory_bytes=1000)
    with pytest.raises(InfeasiblePlanError, match="rank 0 needs"):
        OpProbe(WORKLOAD, rank_context(tight), seed=0).measure((4,), rounds=3, budget_s=1.0)


def test_ops_are_taken_from_typical_passes_and_still_add_up() -> None:
    """A pacer carries debts from one op to the next; medians of each op would lose them. A disturbed pass is dropped."""
    passes = [{"a": (1.0, 0.0), "b": (0.0, 0.0)}, {"b": (1.0, 0.0)}] * 3 + [{"a": (50.0, 9.0), "b": (0.0, 0.0)}]
    typical = op_probe._typical_ops(passes)
    assert sum(map(sum, typical.values())) == pytest.approx(1.0)
    assert typical["a"][1] == 0.0


@pytest.mark.parametrize(
    ("share", "fewest", "most", "sizes"),
    [
        (16, 1, 64, [4, 8, 16, 32]),
        (16, 1, 20, [4, 8, 16, 20]),
        (16, 6, 64, [6, 8, 16, 32]),
        (1, 1, 4, [1, 2]),
        (64, 1, 64, [16, 32, 64]),
        (3, 2, 2, [2]),
    ],
)
def test_sizes_lie_around_an_even_share_and_within_the_bounds(
    share: int, fewest: int, most: int, sizes: list[int]
) -> None:
    assert sizes_to_measure(share, fewest=fewest, most=most) == sizes
