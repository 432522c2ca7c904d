"""The interleaved comparison of plans on one rank: rounds in which every plan runs once, in an order drawn for each round.

What disturbs the machine then disturbs all plans. Each plan begins a round with a step that is not scored, because the
previous plan leaves caches and connections in another state. An idle TCP connection starts slowly, which would otherwise
penalize a plan whose transport no other plan uses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import fmean

from autotune.runtime.train.trainer_protocol import TrainedStep, TrainerProtocol
from autotune.runtime.trial.outcome import RankOutcome, outcome_of

Run = Callable[[TrainerProtocol, int], tuple[float, list[TrainedStep]]]
"""Runs some steps: the CPU time per step, and the steps."""


def interleaved(
    num_plans: int,
    rounds: int,
    num_steps: int,
    trainer_of: Callable[[int], AbstractContextManager[TrainerProtocol]],
    run: Run,
) -> list[RankOutcome]:
    """The outcomes of the plans; steps_s holds the mean step of each round. `trainer_of`: of a plan, warmed up."""
    all_steps: list[list[TrainedStep]] = [[] for _ in range(num_plans)]
    means: list[list[float]] = [[] for _ in range(num_plans)]
    cpu_s = [0.0] * num_plans
    outcomes = [RankOutcome()] * num_plans
    for number in range(rounds):
        for index in random.Random(number).sample(range(num_plans), num_plans):  # noqa: S311 - no secret
            with trainer_of(index) as trainer:
                run(trainer, 1)
                used_s, steps = run(trainer, num_steps)
                trainer.flush()
                cpu_s[index] += used_s
                all_steps[index] += steps
                means[index].append(fmean(step.total_s for step in steps))
                outcomes[index] = outcome_of(trainer, all_steps[index], cpu_s[index] / (number + 1))
                del trainer  # its memory is given back at the end of the context, before another one is built
    return [
        RankOutcome(steps_s=tuple(mean), result=outcome.result) for outcome, mean in zip(outcomes, means, strict=True)
    ]
