"""The split follows the ranks' speeds, but not noise, outlier steps or misreporting ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from autotune.online.batch_controller import BatchController
from autotune.workloads.changes.scenario import ChangingCluster
from autotune.workloads.changes.scenario_file import load_scenario
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import InfeasiblePlanError, SpecError
from autotune.workloads.split import Bounds, bounds
from tests.autotune.online.simulated_ranks import Job

FOUR_TIMES = [
    (4.0, 1.0),
    (4.0, 2.0, 1.0),
    (4.0, 4 / 1.5, 2.0, 1.0),
    (4.0, 4.0, 1.0, 1.0),
    (1.0, 4.0, 4.0, 4.0),
]


def steady(speeds: Sequence[float]):
    return lambda step: speeds


@pytest.mark.parametrize("speeds", FOUR_TIMES)
@pytest.mark.parametrize("total", [64, 96, 512])
@pytest.mark.parametrize("fixed_s", [0.0, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_four_times_unlike_ranks_are_balanced_within_three_adjustments(
    speeds: tuple[float, ...], total: int, fixed_s: float, noise: float
) -> None:
    job = Job(steady(speeds), total=total, fixed_s=fixed_s, noise=noise).run(60)
    assert 1 <= len(job.moves) <= 3 + (noise > 0)
    third = [step for step, _ in job.moves][:3][-1] + job.delay
    assert job.imbalance(59) <= max(0.05 + noise, job.least_imbalance())
    if not noise:
        assert job.imbalance(third) <= max(0.05, job.least_imbalance())
    if not fixed_s:
        assert job.of_ideal(59) >= 0.9


@pytest.mark.parametrize("total", [64, 512])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03, 0.06])
def test_equal_ranks_are_left_alone(total: int, noise: float) -> None:
    """Among many noisy steps some look like a change; following those must cost at most one percent."""
    jobs = [Job(steady((1.0,) * 4), total=total, noise=noise, seed=seed).run(200) for seed in range(20)]
    num_moves = sum(len(job.moves) for job in jobs)
    assert num_moves <= (0 if noise <= 0.01 else 20)  # of 4,000 steps
    taken_s = [max(compute_s) for job in jobs for compute_s in job.compute_s]
    assert sum(taken_s) / len(taken_s) <= 1.01 * total / 4


def test_noise_does_not_unbalance_a_balanced_split() -> None:
    for seed in range(6):
        job = Job(steady((4.0, 2.0, 1.0)), total=256, noise=0.03, seed=seed).run(200)
        assert len(job.moves) <= 4
        assert max(job.compute_s[step][rank] for step in range(20, 200) for rank in range(3)) < 1.05 * 256 / 7


def test_a_move_after_an_outlier_step_is_undone_with_the_next_step() -> None:
    """It could have been a change, and waiting for another slow step would have cost as much."""
    slow = {(30, 1): 8.0, (31, 2): 5.0, (50, 0): 20.0}
    job = Job(steady((1.0,) * 4), noise=0.01, slow_steps=slow, delay=1).run(100)
    assert sum(split != (16,) * 4 for split in job.splits) <= 2 * len(slow)
    assert job.splits[-1] == (16,) * 4


def test_a_busy_neighbour_is_followed_from_rank_to_rank() -> None:
    """The scenario slows rank 0 three times from step 40 to 80, then rank 1 until 120; then it starts over at 160."""
    cluster = load_cluster("uniform4")
    changing = ChangingCluster(cluster, load_scenario("busy-neighbour"))
    stated = cluster.devices[0].flops_per_s
    assert stated is not None

    def speeds(step: int) -> list[float]:
        return [(device.flops_per_s or 0.0) / stated for device in changing.at(step).devices]

    job = Job(speeds, noise=0.02, fixed_s=0.5).run(320)
    for change in (40, 80, 120, 200, 240, 280):
        assert speeds(change) != speeds(change - 1)
        assert job.imbalance(change) > 0.2
        assert job.imbalance(change + 12) <= 0.09  # a sample is 7 % of a slow rank's time
    assert len(job.moves) <= 20
    assert sum(job.of_ideal(step) for step in range(40, 320)) / 280 > 0.75


def test_a_misreporting_rank_is_detected() -> None:
    job = Job(steady((1.0,) * 4), noise=0.01, reported=lambda rank, step: 0.5 if rank == 1 else 1.0).run(100)
    (first_step, first), (second_step, second) = job.moves[:2]
    assert first.samples[1] > 16
    assert first.predicted_gain > 0.1
    assert second.samples == (16,) * 4
    assert "back to the last split" in second.reason
    assert second_step <= first_step + job.delay + 3
    assert sum(split != (16,) * 4 for split in job.splits) <= 0.2 * len(job.splits)
    assert job.splits[-1] == (16,) * 4


def test_noisy_waits_are_not_taken_for_misreporting() -> None:
    """A rank gets slower in small steps; the gain of each move is close to the noise of the waits."""
    slower = [1.5 * 0.96 ** (step // 10) for step in range(200)]
    jobs = [
        Job(lambda step: (slower[step], 1.0, 1.0, 1.0), comm_s=3.0, comm_noise=0.01, seed=n).run(200) for n in range(20)
    ]
    moves = [move for job in jobs for _, move in job.moves]
    assert len(moves) > 60
    assert sum("back to the last split" in move.reason for move in moves) <= 0.02 * len(moves)


def test_pauses_after_a_misreporting_rank_get_longer() -> None:
    job = Job(steady((1.0,) * 4), reported=lambda rank, step: 0.5 if rank == 1 else 1.0).run(1000)
    tried = [step for step, move in job.moves if move.samples[1] > 16]
    gaps = [b - a for a, b in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_a_rank_that_begins_to_misreport_is_detected() -> None:
    job = Job(steady((4.0, 2.0, 1.0)), total=256, reported=lambda rank, step: 0.5 if step > 60 and not rank else 1.0)
    job.run(120)
    assert job.splits[60] == job.splits[-1]
    assert any(split != job.splits[60] for split in job.splits[60:])


def test_compute_times_longer_than_the_step_are_ignored() -> None:
    assert Job(steady((1.0,) * 4), reported=lambda rank, step: 2.0 if rank == 1 else 1.0).run(100).moves == []


def test_a_slow_misreporting_rank_gets_fewer_samples_nevertheless() -> None:
    """It is four times slower and reports half of that: too many samples, but fewer than before."""
    job = Job(steady((4.0, 4.0, 4.0, 1.0)), reported=lambda rank, step: 0.5 if rank == 3 else 1.0).run(100)
    assert job.splits[-1][3] < 12
    assert max(job.compute_s[-1]) < 0.7 * max(job.compute_s[0])


def test_memory_caps_and_minimums_are_kept() -> None:
    limits = Bounds(minimums=(1, 1, 8), caps=(30, 64, 64))
    job = Job(steady((8.0, 2.0, 0.5)), limits=limits).run(50)
    assert job.splits[-1] == (30, 26, 8)
    with pytest.raises(InfeasiblePlanError, match="does not fit"):
        BatchController(Bounds(minimums=(0, 0), caps=(10, 10)), 64)


def test_no_move_for_a_gain_that_is_small_beside_communication() -> None:
    assert Job(steady((1.1, 1.0)), comm_s=1000.0).run(50).moves == []
    assert len(Job(steady((1.5, 1.0)), comm_s=1.0).run(50).moves) >= 1


def test_a_move_that_is_not_applied_is_proposed_again() -> None:
    controller = BatchController(bounds(2, 64), 64)
    proposed = []
    for step in range(60):
        controller.observe(step, (32, 32), (8.0, 32.0), 33.0)
        if controller.propose(step) is not None:
            proposed.append(step)
    assert proposed == [4, 26, 48]


def test_work_counts_if_samples_are_unequal() -> None:
    """Tokens: 10 per sample on one rank's steps, 30 on the other's. Rank 1 is the faster one for its work."""
    controller = BatchController(bounds(2, 64), 64)
    for step in range(5):
        controller.observe(step, (32, 32), (1.0, 1.0), 2.1, work=(320.0, 960.0))
    move = controller.propose(4)
    assert move is not None
    assert move.samples == (16, 48)


def test_imbalance_is_that_of_the_last_steps() -> None:
    controller = BatchController(bounds(2, 64), 64)
    assert controller.imbalance is None
    assert controller.propose(0) is None
    controller.observe(0, (32, 32), (1.0, 3.0), 3.5)
    assert controller.imbalance == pytest.approx(0.5)


@pytest.mark.parametrize(("samples", "compute_s"), [((32, 31), (1.0, 1.0)), ((64,), (1.0,)), ((32, 32), (1.0,))])
def test_steps_of_another_job_are_refused(samples: tuple[int, ...], compute_s: tuple[float, ...]) -> None:
    with pytest.raises(SpecError, match="give both for every rank"):
        BatchController(bounds(2, 64), 64).observe(0, samples, compute_s, 1.0)
