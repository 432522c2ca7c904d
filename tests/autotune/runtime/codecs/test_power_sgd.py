"""powersgd: exact where a matrix is of low rank, nearly the best elsewhere, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autotune.runtime.codecs.power_sgd import PowerSgd, orthonormal, scaled_columns
from autotune.runtime.codecs.protocol import Round
from autotune.workloads.plan import CompressionPlan
from tests.autotune.runtime.reduce.lockstep import Ranks


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def of_low_rank(low_rank: int) -> CompressionPlan:
    return CompressionPlan(codec="powersgd", low_rank=low_rank)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_sum_of_low_rank_arrives_whole(num_ranks: int) -> None:
    right = random(2, 20, seed=9)
    given = [(random(30, 2, seed=rank) @ right).flatten() for rank in range(num_ranks)]
    results = Ranks.of(of_low_rank(2), ((30, 20),), num_ranks).step(given)
    torch.testing.assert_close(results[0], torch.stack(given).sum(dim=0))


def test_vectors_and_small_matrices_arrive_as_they_are_and_in_their_places() -> None:
    shapes = ((5,), (30, 20), (2, 2), (40, 2, 2, 2), (7,))
    given = [random(5 + 600 + 4 + 320 + 7, seed=rank) for rank in range(2)]
    result, total = Ranks.of(of_low_rank(1), shapes, 2).step(given)[0], given[0] + given[1]
    for places in (slice(0, 5), slice(605, 609), slice(929, 936)):
        assert torch.equal(result[places], total[places])
    matrix, convolution = result[5:605].view(30, 20), result[609:929].view(40, 8)
    assert torch.linalg.matrix_rank(matrix) == 1
    assert torch.linalg.matrix_rank(convolution) == 1


def test_where_nothing_shrinks_one_round_does() -> None:
    group = Ranks.of(of_low_rank(4), ((4, 4), (9,)), 2)
    group.step([random(25)] * 2)
    assert len(group.posted) == 1


def test_steps_that_repeat_come_near_to_the_best_approximation() -> None:
    """Warm start: each step goes on with the iteration. Feedback is left out, so that every step sees the same matrix."""
    matrix = random(40, 30)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    best = torch.linalg.norm(matrix - (u[:, :3] * s[:3]) @ v[:3])
    codec, errors = PowerSgd([(40, 30)], 3), []
    for _ in range(40):
        owed, flat = matrix.flatten().clone(), torch.zeros(1200, dtype=torch.float64)
        following: Round | None = codec.send(owed)
        while following is not None:
            following = codec.receive(following.tensors, owed, flat)
        errors.append(float(torch.linalg.norm(matrix - flat.view(40, 30)) / best))
    assert errors[0] > 1.05
    assert errors[-1] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e30])
def test_gradients_of_any_size_pass_in_single_precision(size: float) -> None:
    group = Ranks.of(of_low_rank(1), ((30, 20),), 1)
    given = (random(30, 1, dtype=torch.float32) @ random(1, 20, seed=1, dtype=torch.float32)).flatten() * size
    for _ in range(3):
        (result,) = group.step([given])
        torch.testing.assert_close(result / size, given / size, rtol=1e-4, atol=1e-5)


def test_a_matrix_that_was_zero_is_sent_once_it_is_not() -> None:
    group = Ranks.of(of_low_rank(1), ((30, 20),), 1)
    group.step([torch.zeros(600)])
    given = (random(30, 1) @ random(1, 20, seed=1)).flatten().float()
    torch.testing.assert_close(group.step([given])[0], given, rtol=1e-4, atol=1e-5)


def test_columns_are_made_orthonormal_and_one_that_adds_nothing_zero() -> None:
    columns = random(50, 4)
    columns[:, 2] = columns[:, 0] - 2 * columns[:, 1]
    found = orthonormal(columns)
    torch.testing.assert_close(found.T @ found, torch.diag(torch.tensor([1.0, 1.0, 0.0, 1.0]).double()))
    assert not orthonormal(torch.zeros(5, 2)).any()


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_columns_that_are_not_finite_stay_so(bad: float) -> None:
    columns = random(6, 2)
    columns[3, 0] = bad
    assert not orthonormal(columns)[:, 0].isfinite().all()


def test_a_column_of_nothing_is_replaced() -> None:
    matrix, spare = torch.tensor([[3.0, 0.0, torch.nan], [4.0, 0.0, 1.0]]), torch.ones(2, 3)
    torch.testing.assert_close(scaled_columns(matrix, spare), torch.tensor([[0.75, 1.0, 1.0], [1.0, 1.0, 1.0]]))
