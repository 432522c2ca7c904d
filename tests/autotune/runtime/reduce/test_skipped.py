"""A rank that is at another position of the script is named in the error, on all ranks and within seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from autotune.runtime.reduce import scheduled, sender
from autotune.runtime.reduce.cross_step import CrossStepReducer
from autotune.runtime.reduce.step_position import POSITIONS, odd_rank
from tests.autotune.runtime.reduce.cross_step_jobs import FIXED_ORDER, batch, loss_of, mlp, own_rows, reducer_of
from tests.gloo_ranks import on_ranks

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
SETTINGS: dict[str, dict[str, Any]] = {
    "overlap": {},
    "barrier": {"crosses_steps": False},
    "barrier, fixed order": {"crosses_steps": False, **FIXED_ORDER},
    "overlap, fixed order": FIXED_ORDER,
}


def errors(size: int, skip: Callable[[int, int], str], **comm: Any) -> tuple[list[str], float]:
    """What each rank's training ends with. `skip`: what a rank leaves out in a step ("batch", "step", "")."""

    def run(group: dist.ProcessGroup) -> str:
        torch.manual_seed(0)
        model = mlp().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reducer = reducer_of(model, optimizer, group, **comm)
        try:
            train(reducer, model, optimizer, group)
        except Exception as error:  # noqa: BLE001 - each test compares it
            reducer.detach(error)
            return str(error)
        reducer.detach()
        return ""

    def train(reducer: CrossStepReducer, model: Any, optimizer: Any, group: dist.ProcessGroup) -> None:
        for step in range(8):
            reducer.batch_number = step
            left_out = skip(group.rank(), step)
            optimizer.zero_grad()
            if left_out != "batch":
                loss_of(model, own_rows(batch(step), group)).backward()
                if left_out != "step":
                    optimizer.step()

    begun_s = time.monotonic()
    return on_ranks(size, run), time.monotonic() - begun_s


@pytest.mark.parametrize("what", ["batch", "step"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_rank_that_skips_is_named(name: str, what: str) -> None:
    found, seconds = errors(3, lambda rank, step: what if (rank, step) == (1, 3) else "", **SETTINGS[name])
    assert seconds < 12
    assert all(found), found
    assert any("rank 1 sends the gradients of another step" in text for text in found), found


@pytest.mark.parametrize("name", ["barrier", "barrier, fixed order"])
def test_a_rank_that_ends_early_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "_SLICE_S", 0.2)
    monkeypatch.setattr(scheduled, "_LEFT_S", 0.5)
    monkeypatch.setattr(sender, "_END_S", 1.0)
    found, seconds = errors(2, lambda rank, step: "batch" if rank == 1 and step == 7 else "", **SETTINGS[name])
    assert seconds < 15
    assert "rank 1 has ended its training" in found[0], found


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_that_all_ranks_skip_are_fine(name: str) -> None:
    found, _ = errors(2, lambda _, step: {2: "batch", 4: "step"}.get(step, ""), **SETTINGS[name])
    assert found == ["", ""]


@given(st.integers(2, 40), st.integers(0, POSITIONS - 1), st.data())
def test_the_odd_rank_is_found_from_sums(num_ranks: int, position: int, data: st.DataObject) -> None:
    positions = [position] * num_ranks
    odd = data.draw(st.integers(0, num_ranks - 1))
    positions[odd] = data.draw(st.integers(0, POSITIONS - 1))
    rows = torch.tensor([[t, t * (rank + 1), t * t] for rank, t in enumerate(positions)], dtype=torch.float32)
    found = {odd_rank(rows.sum(0), num_ranks, rank, positions[rank]) for rank in range(num_ranks)}
    if positions[odd] == position:
        assert found == {None}
    elif num_ranks > 2:
        assert found == {odd}
    else:
        assert None not in found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["barrier", "overlap", "barrier, fixed order"])
def test_a_rank_that_is_late_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def skip(rank: int, step: int) -> str:
        if (rank, step) == (1, 3):
            time.sleep(13)
        return ""

    found, _ = errors(3, skip, **SETTINGS[name])
    assert found == ["", "", ""]
    (text,) = {record.getMessage() for record in caplog.records}
    assert "rank 1 has not sent its own" in text
    assert "ranks [0, 2] have waited 10 s" in text
