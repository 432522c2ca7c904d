"""One trial on one rank: warm-up, measured steps, and an account of them; and several plans in turn for a comparison.

Whatever goes wrong on a rank becomes an outcome, never an exception: the rank drops its process group, the peers' waits
fail in turn, and all ranks meet again at the end of the trial.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from statistics import fmean, median

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.profilers.timeline import Timeline
from autotune.results.store.record import RankResult
from autotune.runtime.control.step_directives import Decide, StepCoordinator
from autotune.runtime.errors import PeerLostError
from autotune.runtime.placed.plan_trainer import PlanPipelineTrainer
from autotune.runtime.train.retuned_trainer import SteeredTrainer
from autotune.runtime.train.tracing import ClockOffset, aligned, samplers_for, traced_step
from autotune.runtime.train.trainer import RankContext, Trainer, needs_norm_group
from autotune.runtime.train.trainer_protocol import TrainedStep, TrainerProtocol
from autotune.runtime.transport.groups import Groups
from autotune.workloads.errors import InfeasiblePlanError, LossNotFiniteError, SpecError, TrialTimeoutError
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CommPlan, Plan
from autotune.workloads.workload import Workload

SAME_CLOCK = ClockOffset()
Way = tuple[str, str, tuple[int, ...], int, tuple[float, ...]]
"""Transport, collective, servers, whose, and owners of shards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How long to measure."""

    warmup: int
    steps: int
    timeout_s: float
    traced: bool = True
    """Whether a trial ends with one more step that is traced and not scored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What ended a trial early on one rank."""

    kind: str
    """"own": the cause lies on this rank; "peer": another rank had left; "memory"; "time"."""
    message: str
    at_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """What one rank has to say about a trial."""

    fault: Fault | None = None
    steps_s: tuple[float, ...] = ()
    result: RankResult | None = None
    timeline: Timeline = field(default_factory=Timeline)
    loss_shares: tuple[float, ...] = ()
    """This rank's part of each step's loss; the sum over ranks is the loss of the whole batch."""
    accuracy: float | None = None
    cosine: float | None = None
    """Of a codec: how much its training went the way of the plain one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stage:
    """Where trainers perform."""

    deadline: float
    group_for: Callable[[Plan], dist.ProcessGroup]
    """The process group of a plan, opened by all ranks together if it is not there yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steering:
    """A training run whose plan may change on the way."""

    decide: Decide | None
    """Rank 0's; the others follow."""


class RankRunner:
    """Runs trials on this rank."""

    def __init__(  # noqa: PLR0913 - what a runner is made of
        self,
        workload: Workload,
        groups: Groups,
        rank_context: RankContext,
        *,
        seed: int,
        clock: ClockOffset = SAME_CLOCK,
        graph: OpGraph | None = None,
    ) -> None:
        """`graph`: the model's ops, where plans may cut it into stages."""
        self._workload, self._graph = workload, graph
        self._groups = groups
        self._rank_context = rank_context
        self._seed = seed
        self._clock = clock

    def close(self) -> None:
        """The job ends: leave no thread behind."""
        self._groups.join()

    def trial(self, plan: Plan, budget: Budget) -> RankOutcome:
        """Measure one plan, then trace one more step of it."""

        def measure(trainers: list[TrainerProtocol], stage: _Stage) -> list[RankOutcome]:
            _warm_up(trainers[0], budget.warmup, stage.deadline)
            cpu_s, steps = _run(trainers[0], budget.steps, stage.deadline)
            outcome = self._outcome(trainers[0], steps, cpu_s)
            if not budget.traced:
                return [outcome]
            return [replace(outcome, timeline=traced_step(trainers[0], self._clock)[1])]

        return self._guarded(measure, [plan], budget.timeout_s, traced=budget.traced)[0]

    def compare(self, plans: Sequence[Plan], rounds: int, budget: Budget) -> list[RankOutcome]:
        """Measure several plans in turn, `rounds` times; an outcome's steps_s holds the mean step of each round.

        The order is drawn anew for each round, the same on every rank, and each turn begins with a step that is not
        scored: whoever ran before leaves its mark on caches and connections. An idle TCP connection starts slowly, which
        would be held against a plan whose transport nobody else uses.
        """

        def measure(trainers: list[TrainerProtocol], stage: _Stage) -> list[RankOutcome]:
            for trainer in trainers:
                _warm_up(trainer, budget.warmup, stage.deadline)
                trainer.flush()
            all_steps: list[list[TrainedStep]] = [[] for _ in plans]
            cpu_s = [0.0 for _ in plans]
            means: list[list[float]] = [[] for _ in plans]
            for number in range(rounds):
                for index in random.Random(number).sample(range(len(plans)), len(plans)):  # noqa: S311 - no secret
                    _run(trainers[index], 1, stage.deadline)
                    used_s, steps = _run(trainers[index], budget.steps, stage.deadline)
                    trainers[index].flush()
                    cpu_s[index] += used_s / rounds
                    all_steps[index] += steps
                    means[index].append(fmean(step.total_s for step in steps))
            outcomes = [self._outcome(t, s, c) for t, s, c in zip(trainers, all_steps, cpu_s, strict=True)]
            return [_with_rounds(outcome, tuple(mean)) for outcome, mean in zip(outcomes, means, strict=True)]

        return self._guarded(measure, plans, budget.timeout_s)

    def quality(self, plan: Plan, budget: Budget) -> list[RankOutcome]:
        """Train with the plan's codec and without it, from the same start on the same batches; devices are not paced."""
        plain = Plan(batch=plan.batch, comm=CommPlan(transport=plan.comm.transport))

        def measure(trainers: list[TrainerProtocol], stage: _Stage) -> list[RankOutcome]:
            start = [_parameters(trainer) for trainer in trainers]
            steps = [_run(trainer, budget.steps, stage.deadline)[1] for trainer in trainers]
            moved = [_parameters(trainer) - before for trainer, before in zip(trainers, start, strict=True)]
            cosine = float(torch.nn.functional.cosine_similarity(moved[0], moved[1], dim=0))
            outcomes = [self._outcome(trainer, made, 0.0) for trainer, made in zip(trainers, steps, strict=True)]
            return [replace(outcome, cosine=cosine) for outcome in outcomes]

        unpaced = replace(self._rank_context, graph=None, replay=None)
        return self._guarded(measure, [plain, plan], budget.timeout_s, rank_context=unpaced)

    def train(
        self,
        plan: Plan,
        budget: Budget,
        on_step: Callable[[int], None],
        *,
        watched: bool = False,
        steering: Steering | None = None,
    ) -> RankOutcome:
        """Train `effort.steps` steps without a warm-up, then trace one more, with torch's ops and the device's counters
        if `watched`; rank 0 also says how accurate the model became, if it can.
        """

        def measure(trainers: list[TrainerProtocol], stage: _Stage) -> list[RankOutcome]:
            with ExitStack() as watching:
                samplers = [watching.enter_context(s) for s in samplers_for(self._rank_context)] if watched else []
                outcome = run(trainers[0], stage)
                _, timeline = traced_step(trainers[0], self._clock, with_ops=watched)
            counters = tuple(counter for sampler in samplers for counter in sampler.counters())
            sampled = aligned(Timeline(counters=counters), self._clock)
            outcome = replace(outcome, timeline=Timeline.merge([timeline, sampled]))
            if (accuracy := getattr(self._workload, "accuracy", None)) is not None:
                model = trainers[0].whole_model()
                if self._rank_context.rank == 0:
                    outcome = replace(outcome, accuracy=float(accuracy(model)))
            return [outcome]

        def run(trainer: TrainerProtocol, stage: _Stage) -> RankOutcome:
            with ExitStack() as leaving:
                stepper: TrainerProtocol | SteeredTrainer = trainer
                if steering is not None:
                    if not isinstance(trainer, Trainer):
                        raise SpecError(
                            "a plan with pipeline stages cannot change while it trains: train without --online"
                        )
                    coordinator = StepCoordinator(trainer.group, steering.decide, timeout_s=budget.timeout_s)
                    stepper = SteeredTrainer(trainer, coordinator, stage.group_for, self._groups.stand_ins)
                    leaving.callback(stepper.close)
                steps: list[TrainedStep] = [stepper.step() if steering is not None else trainer.metered_step()]
                cpu_s = time.process_time()
                _check_finite(steps[0].loss_share, 1)
                while len(steps) < budget.steps:
                    steps += _run(stepper, 1, stage.deadline)[1]
                    _check_finite(steps[-1].loss_share, len(steps))
                    on_step(len(steps))
                cpu_s = (time.process_time() - cpu_s) / max(budget.steps - 1, 1)
                return self._outcome(trainer, steps, cpu_s)

        return self._guarded(measure, [plan], budget.timeout_s, traced=True)[0]

    def _guarded(
        self,
        measure: Callable[[list[TrainerProtocol], _Stage], list[RankOutcome]],
        plans: Sequence[Plan],
        timeout_s: float,
        *,
        traced: bool = False,
        rank_context: RankContext | None = None,
    ) -> list[RankOutcome]:
        """`measure` with a trainer for each plan, on groups that are gone afterwards however it ends."""
        trainers: list[TrainerProtocol] = []
        rank_context = replace(rank_context or self._rank_context, timeout_s=timeout_s)
        try:
            with ExitStack() as stack:
                ways = [_way(plan, index) for index, plan in enumerate(plans)]
                norm_ways = {_norm_way(plan) for plan in plans if needs_norm_group(self._workload, plan)}
                groups = {
                    way: stack.enter_context(self._open(way, timeout_s, traced=traced))
                    for way in sorted({*ways, *norm_ways})
                }

                def group_for(plan: Plan) -> dist.ProcessGroup:
                    way = _way(plan, 0)
                    if way not in groups and (other := _same_but_owners(way, groups)) is not None:
                        groups[way] = groups.pop(other)
                        self._groups.set_owners(groups[way], plan.comm.shares)
                    elif way not in groups:
                        groups[way] = stack.enter_context(self._open(way, timeout_s, traced=traced))
                    return groups[way]

                stage = _Stage(deadline=time.monotonic() + timeout_s, group_for=group_for)
                try:
                    for plan, way in zip(plans, ways, strict=True):
                        norms = groups.get(_norm_way(plan))
                        trainers.append(self._trainer(plan, groups[way], rank_context, norms))
                        del norms
                    return measure(trainers, stage)
                finally:
                    error = sys.exception()
                    while trainers:
                        trainers.pop().close(error)
                    groups.clear()
                    del error
        except Exception as error:  # noqa: BLE001 - a user's model may raise anything; the sweep goes on
            # The traceback's frames hold the trainers, and they the group: peers wait until it is gone.
            fault = _fault(error)
            traceback.clear_frames(error.__traceback__)
            return [RankOutcome(fault=fault)] * len(plans)
        finally:
            if self._rank_context.replay is not None:
                self._rank_context.replay.leave()
            gc.collect()

    def _trainer(
        self, plan: Plan, group: dist.ProcessGroup, rank_context: RankContext, norms: dist.ProcessGroup | None
    ) -> TrainerProtocol:
        if plan.pipeline is None:
            return Trainer(self._workload, plan, group, rank_context, seed=self._seed, norm_group=norms)
        assert self._graph is not None
        return PlanPipelineTrainer(self._workload, plan, group, rank_context, seed=self._seed, graph=self._graph)

    def _open(self, way: Way, timeout_s: float, *, traced: bool) -> AbstractContextManager[dist.ProcessGroup]:
        transport, collective, servers, _, shares = way
        return self._groups.open(
            transport, collective=collective, servers=servers, shares=shares, timeout_s=timeout_s, traced=traced
        )

    def _outcome(self, trainer: TrainerProtocol, steps: Sequence[TrainedStep], cpu_s: float) -> RankOutcome:
        result = RankResult(
            rank=self._rank_context.rank,
            device=self._rank_context.device.name,
            samples=trainer.plan.batch.samples[self._rank_context.rank],
            compute_s=median(step.compute_s for step in steps),
            wait_s=median(step.wait_s for step in steps),
            cpu_s=cpu_s,
            peak_memory_bytes=trainer.peak_memory_bytes,
            late_s=median(step.late_s for step in steps),
        )
        return RankOutcome(
            steps_s=tuple(step.total_s for step in steps),
            result=result,
            loss_shares=tuple(step.loss_share for step in steps),
        )


def _way(plan: Plan, index: int) -> Way:
    """What decides which process group a plan needs. Schedules and pipelines send when they see fit and share it with nobody."""
    own = index if plan.comm.reducer == "scheduled" or plan.pipeline is not None else -1
    return plan.comm.transport, plan.comm.collective, plan.comm.servers, own, plan.comm.shares


def _norm_way(plan: Plan) -> Way:
    """The group of BatchNorm's statistics, which trainers that take turns can share."""
    return plan.comm.transport, "ring", (), -2, ()


def _same_but_owners(way: Way, known: Iterable[Way]) -> Way | None:
    """The way whose group will do once its shards have other owners: to open one takes longer than a step."""
    return next((other for other in known if other[:-1] == way[:-1]), None)


def _parameters(trainer: TrainerProtocol) -> Tensor:
    """All of them in a row, up to date."""
    return torch.cat([parameter.detach().double().reshape(-1) for parameter in trainer.whole_model().parameters()])


def _warm_up(trainer: TrainerProtocol, num_steps: int, deadline: float) -> None:
    """At least one step always: it meters memory."""
    trainer.metered_step()
    _run(trainer, max(num_steps - 1, 0), deadline)


def _run(trainer: TrainerProtocol | SteeredTrainer, num_steps: int, deadline: float) -> tuple[float, list[TrainedStep]]:
    """That many steps, and the processor time of one."""
    cpu_s = time.process_time()
    steps: list[TrainedStep] = []
    for _ in range(num_steps):
        if time.monotonic() > deadline:
            raise TrialTimeoutError("the time limit of the trial has passed")
        steps.append(trainer.step())
    return (time.process_time() - cpu_s) / max(num_steps, 1), steps


def _check_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise LossNotFiniteError(loss, step)


def _with_rounds(outcome: RankOutcome, rounds_s: tuple[float, ...]) -> RankOutcome:
    return RankOutcome(steps_s=rounds_s, result=outcome.result)


def _fault(error: Exception) -> Fault:
    text = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, InfeasiblePlanError):
        kind, text = "memory", str(error)
    elif isinstance(error, TrialTimeoutError):
        kind, text = "time", str(error)
    elif isinstance(error, LossNotFiniteError):
        kind, text = "own", str(error)
    elif isinstance(error, PeerLostError) or "gloo" in text or "PeerLostError" in text:
        kind = "peer"
    else:
        kind = "own"
    return Fault(kind=kind, message=text.splitlines()[0][:300], at_s=time.monotonic())
