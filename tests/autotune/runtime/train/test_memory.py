"""Memory, accounted byte by byte, on nets small enough for closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autotune.runtime.train.memory import check_memory, sample_cap, static_bytes
from autotune.workloads.capture import SavedTensorMeter
from autotune.workloads.cluster import Device
from autotune.workloads.errors import InfeasiblePlanError

FLOAT = 4
BATCH = 5


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))


def metered_loss(model: nn.Module, meter: SavedTensorMeter) -> Tensor:
    with meter.watch():
        loss: Tensor = model(torch.randn(BATCH, 12)).square().mean()
    return loss


# --- saved activations -------------------------------------------------------------------------------------------------


def test_the_peak_is_what_backward_needs_at_the_end_of_forward() -> None:
    """The input (12), the ReLU's output (20, saved twice and counted once), the last output (3), per sample."""
    model = net()
    meter = SavedTensorMeter(model)
    loss = metered_loss(model, meter)
    assert meter.current_bytes == meter.peak_bytes == BATCH * (12 + 20 + 3) * FLOAT
    del loss


def test_backward_releases_everything_and_the_peak_stays() -> None:
    model = net()
    meter = SavedTensorMeter(model)
    torch.autograd.backward(metered_loss(model, meter))
    assert meter.current_bytes == 0
    assert meter.peak_bytes == BATCH * (12 + 20 + 3) * FLOAT


def test_a_loss_that_is_dropped_without_backward_releases_everything() -> None:
    model = net()
    meter = SavedTensorMeter(model)
    loss = metered_loss(model, meter)
    assert meter.current_bytes > 0
    del loss
    assert meter.current_bytes == 0


def test_a_second_step_does_not_add_to_the_peak_of_the_first() -> None:
    model = net()
    meter = SavedTensorMeter(model)
    for _ in range(3):
        torch.autograd.backward(metered_loss(model, meter))
    assert meter.peak_bytes == BATCH * (12 + 20 + 3) * FLOAT


def test_two_losses_held_at_once_add_up() -> None:
    model = net()
    meter = SavedTensorMeter(model)
    held = [metered_loss(model, meter), metered_loss(model, meter)]
    assert meter.peak_bytes == 2 * BATCH * (12 + 20 + 3) * FLOAT
    del held


def test_parameters_and_buffers_are_not_activations() -> None:
    model = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 400, bias=False))
    model.eval()
    meter = SavedTensorMeter(model)
    loss = metered_loss(model, meter)
    assert meter.peak_bytes < 400 * 12 * FLOAT  # the weights alone would be as much
    del loss


def test_metering_does_not_change_gradients() -> None:
    model = net()
    torch.manual_seed(0)
    torch.autograd.backward(model(torch.randn(BATCH, 12)).square().mean())
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.manual_seed(0)
    torch.autograd.backward(metered_loss(model, SavedTensorMeter(model)))
    metered = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(plain) == len(metered) == 4
    assert all(map(torch.equal, plain, metered))


def test_nothing_is_metered_outside_the_watch() -> None:
    model = net()
    meter = SavedTensorMeter(model)
    loss = model(torch.randn(BATCH, 12)).square().mean()
    assert meter.peak_bytes == 0
    del loss


# --- what is held between steps ----------------------------------------------------------------------------------------

PARAMETERS = (12 * 20 + 20 + 20 * 3 + 3) * FLOAT


def test_parameters_and_gradients_are_held_from_the_start() -> None:
    model = net()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    assert static_bytes(model, plain, buffer_bytes=0) == 2 * PARAMETERS
    assert static_bytes(model, plain, buffer_bytes=100) == 2 * PARAMETERS + 100


def test_momentum_is_held_once_there_was_a_step() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.autograd.backward(model(torch.randn(BATCH, 12)).sum())
    optimizer.step()
    assert static_bytes(model, optimizer, buffer_bytes=0) == 3 * PARAMETERS


def test_adam_holds_two_moments_and_a_counter_each() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    torch.autograd.backward(model(torch.randn(BATCH, 12)).sum())
    optimizer.step()
    assert static_bytes(model, optimizer, buffer_bytes=0) == 4 * PARAMETERS + 4 * FLOAT


def test_frozen_parameters_have_no_gradient_and_buffers_count() -> None:
    model = nn.Sequential(nn.Linear(12, 20, bias=False), nn.BatchNorm1d(20))
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    buffers = 2 * 20 * FLOAT + 8  # running mean and variance, and a 64-bit count of batches
    assert static_bytes(model, optimizer, buffer_bytes=0) == 12 * 20 * FLOAT + 2 * (2 * 20 * FLOAT) + buffers


def test_tied_weights_are_held_once() -> None:
    model = nn.Sequential(nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False))
    model[1].weight = model[0].weight
    assert static_bytes(model, torch.optim.SGD(model.parameters(), lr=0.1), buffer_bytes=0) == 2 * 144 * FLOAT


# --- what fits ---------------------------------------------------------------------------------------------------------

GIB = 2**30
DEVICE = Device(name="quarter", memory_bytes=GIB)


def test_what_does_not_fit_is_refused_with_rank_samples_need_and_room() -> None:
    with pytest.raises(InfeasiblePlanError) as caught:
        check_memory(int(1.25 * GIB), DEVICE, 3, 50)
    assert str(caught.value) == "rank 3 needs 1.25 GiB for 50 samples but device 'quarter' has 1 GiB"
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("used_bytes", [0, GIB - 1, GIB])
def test_what_fits_exactly_is_fine(used_bytes: int) -> None:
    check_memory(used_bytes, DEVICE, 0, 1)


def test_a_device_without_a_stated_memory_holds_anything() -> None:
    check_memory(10**18, Device(name="real"), 0, 1)


@pytest.mark.parametrize(
    ("static", "per_sample", "cap"),
    [
        (0, GIB / 10, 10),
        (GIB / 2, GIB / 10, 5),
        (0, GIB / 1000, 64),
        (GIB, 1, 0),
        (2 * GIB, 1, 0),
        (0, 0, 64),
    ],
    ids=["ten", "half is taken", "batch is less", "full", "overfull", "samples cost nothing"],
)
def test_a_cap_is_what_fits_beside_what_is_always_held(static: float, per_sample: float, cap: int) -> None:
    assert sample_cap(static, per_sample, DEVICE, 64) == cap


def test_a_device_without_a_stated_memory_is_capped_by_the_batch_only() -> None:
    assert sample_cap(10**18, 10**9, Device(name="real"), 64) == 64


def test_as_many_samples_as_the_cap_fit_and_one_more_does_not() -> None:
    static, per_sample = 123_456_789.0, 7_654_321.0
    cap = sample_cap(static, per_sample, DEVICE, 10**6)
    check_memory(int(static + cap * per_sample), DEVICE, 0, cap)
    with pytest.raises(InfeasiblePlanError):
        check_memory(int(static + (cap + 1) * per_sample), DEVICE, 0, cap + 1)
