"""One trial on one rank: warm-up steps, measured steps and their outcome; also several plans in an interleaved comparison.

A failure on a rank becomes an outcome, never an exception. The rank closes its process groups, the waits of its peers
then fail, and all ranks gather their outcomes at the end of the trial.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from autotune.profilers.timeline import Timeline
from autotune.runtime.control.mpi import RankSilentError
from autotune.runtime.control.step_directives import Decide, StepCoordinator
from autotune.runtime.device import handle
from autotune.runtime.placed.placed_job import trace_workload
from autotune.runtime.placed.plan_trainer import PlanPipelineTrainer
from autotune.runtime.train.embedding_trainer import EmbeddingTrainer
from autotune.runtime.train.retuned_trainer import RetunedTrainer
from autotune.runtime.train.tracing import ClockOffset, aligned, samplers_for, traced_step
from autotune.runtime.train.trainer import RankContext, Trainer, needs_norm_group
from autotune.runtime.train.trainer_protocol import TrainedStep, TrainerProtocol
from autotune.runtime.transport.groups import Groups
from autotune.runtime.trial.device_memory import give_memory_back
from autotune.runtime.trial.interleaved import interleaved
from autotune.runtime.trial.local_step import Share, fault_before_collectives
from autotune.runtime.trial.members import LeftOut, Members, TurnEnds, in_job
from autotune.runtime.trial.outcome import Fault, RankOutcome, check_finite, fault_of, outcome_of
from autotune.workloads.errors import SpecError, TrialTimeoutError
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CommPlan, Plan
from autotune.workloads.tensor_graph.traced import Traced
from autotune.workloads.workload import Workload

SAME_CLOCK = ClockOffset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The measurement budget of a trial."""

    warmup: int
    steps: int
    timeout_s: float
    traced: bool = True
    """Whether the trial ends with one more step, which is traced and not scored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """The limits and resources that the trainers of a trial share."""

    deadline: float
    members: Members
    turns: tuple[TurnEnds | None, ...] = ()
    """Of each plan of a comparison that leaves ranks out."""

    def end_turn(self, index: int) -> None:
        if self.turns and (turn := self.turns[index]) is not None:
            turn.end()


@dataclass(frozen=True, kw_only=True, slots=True)
class Retuning:
    """A training run whose plan may change between steps."""

    decide: Decide | None
    """On rank 0; None on the others, which follow its step directives."""


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
        share: Share | None = None,
        models_at_once: int = sys.maxsize,
    ) -> None:
        """`graph`: the model's ops, where plans may split it into pipeline stages. `share`: where a rank's device has memory
        of its own; the ranks then agree that a step fits before they communicate. `models_at_once`: that a comparison of
        plans may hold; these two are the same on all ranks.
        """
        self._share, self._models_at_once = share, models_at_once
        self._workload, self._graph = workload, graph
        self._traced: Traced | None = None
        self._groups = groups
        self._rank_context = rank_context
        self._seed = seed
        self._clock = clock

    def close(self) -> None:
        """Join the threads of all groups; called once, when the job ends."""
        self._groups.join()
        self._groups.leave_parts()

    def trial(self, plan: Plan, budget: Budget) -> RankOutcome:
        """Measure one plan, then trace one more step of it."""

        def measure(trainers: list[TrainerProtocol], trial: _Trial) -> list[RankOutcome]:
            _warm_up(trainers[0], budget.warmup, trial.deadline)
            cpu_s, steps = _run(trainers[0], budget.steps, trial.deadline)
            outcome = outcome_of(trainers[0], steps, cpu_s)
            if not budget.traced:
                return [outcome]
            return [replace(outcome, timeline=traced_step(trainers[0], self._clock)[1])]

        return self._guarded(measure, [plan], budget.timeout_s, traced=budget.traced)[0]

    def compare(self, plans: Sequence[Plan], rounds: int, budget: Budget) -> list[RankOutcome]:
        """Measure several plans in `rounds` interleaved rounds; an outcome's steps_s holds the mean step of each round.

        Where the device cannot hold the models of all plans, each is built anew for its part of a round and warmed up.
        """

        def measure(trainers: list[TrainerProtocol], trial: _Trial) -> list[RankOutcome]:
            for index, trainer in enumerate(trainers):
                _warm_up(trainer, budget.warmup, trial.deadline)
                trainer.flush()
                trial.end_turn(index)
            trainer_of = partial(self._held_or_built, plans, trainers, trial, budget)
            return interleaved(
                len(plans), rounds, budget.steps, trainer_of, lambda one, number: _run(one, number, trial.deadline)
            )

        return self._guarded(measure, plans, budget.timeout_s, most_models=self._models_at_once)

    @contextmanager
    def _held_or_built(
        self, plans: Sequence[Plan], trainers: list[TrainerProtocol], trial: _Trial, budget: Budget, index: int
    ) -> Iterator[TrainerProtocol]:
        """The trainer of a plan. One that is built here is in `trainers` meanwhile, to be closed also where a step fails."""
        if len(trainers) == len(plans):
            yield trainers[index]
            trial.end_turn(index)
            return
        trainers.append(self._trainer(plans[index], index, trial.members))
        _warm_up(trainers[0], budget.warmup, trial.deadline)
        trainers[0].flush()
        yield trainers[0]
        trial.end_turn(index)
        trainers.pop().close()
        give_memory_back(handle(self._rank_context.torch_device))

    def quality(self, plan: Plan, budget: Budget) -> list[RankOutcome]:
        """Train with and without the plan's codec, from the same parameters on the same batches; devices are not paced."""
        plain = Plan(batch=plan.batch, comm=CommPlan(transport=plan.comm.transport))

        def measure(trainers: list[TrainerProtocol], trial: _Trial) -> list[RankOutcome]:
            start = [_parameters(trainer) for trainer in trainers]
            steps = [_run(trainer, budget.steps, trial.deadline)[1] for trainer in trainers]
            moved = [_parameters(trainer) - before for trainer, before in zip(trainers, start, strict=True)]
            cosine = float(torch.nn.functional.cosine_similarity(moved[0], moved[1], dim=0))
            outcomes = [outcome_of(trainer, made, 0.0) for trainer, made in zip(trainers, steps, strict=True)]
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
        retuning: Retuning | None = None,
    ) -> RankOutcome:
        """Train `budget.steps` steps without warm-up, then trace one more. `watched`: the trace has torch's ops and the
        device's counters. Rank 0's outcome has the accuracy of the model, if the workload defines one.
        """

        def measure(trainers: list[TrainerProtocol], trial: _Trial) -> list[RankOutcome]:
            with ExitStack() as watching:
                samplers = [watching.enter_context(s) for s in samplers_for(self._rank_context)] if watched else []
                outcome = run(trainers[0], trial)
                _, timeline = traced_step(trainers[0], self._clock, with_ops=watched)
            counters = tuple(counter for sampler in samplers for counter in sampler.counters())
            sampled = aligned(Timeline(counters=counters), self._clock)
            outcome = replace(outcome, timeline=Timeline.merge([timeline, sampled]))
            if (accuracy := getattr(self._workload, "accuracy", None)) is not None:
                model = trainers[0].whole_model()
                if trainers[0].rank_context.rank == 0 and not isinstance(trainers[0], LeftOut):
                    outcome = replace(outcome, accuracy=float(accuracy(model)))
            return [outcome]

        def run(trainer: TrainerProtocol, trial: _Trial) -> RankOutcome:
            with ExitStack() as leaving:
                stepper: TrainerProtocol | RetunedTrainer = trainer
                member = trial.members.of(plan)
                if retuning is not None and member is not None:
                    if not isinstance(trainer, Trainer):
                        raise SpecError(
                            "a plan with pipeline stages cannot change while it trains: train without --online"
                        )
                    network, groups = member.rank_context.network, member.groups
                    coordinator = StepCoordinator(network, retuning.decide, timeout_s=budget.timeout_s)
                    stepper = RetunedTrainer(
                        trainer,
                        coordinator,
                        lambda plan: groups.switch(plan.comm, _use(plan, 0)),
                        member.host_representatives,
                    )
                    leaving.callback(stepper.close)
                is_retuned = isinstance(stepper, RetunedTrainer)
                steps: list[TrainedStep] = [stepper.step() if is_retuned else trainer.metered_step()]
                cpu_s = time.process_time()
                check_finite(steps[0].loss_share, 1)
                while len(steps) < budget.steps:
                    steps += _run(stepper, 1, trial.deadline)[1]
                    check_finite(steps[-1].loss_share, len(steps))
                    if member is not None:
                        on_step(len(steps))
                cpu_s = (time.process_time() - cpu_s) / max(budget.steps - 1, 1)
                return outcome_of(trainer, steps, cpu_s)

        return self._guarded(measure, [plan], budget.timeout_s, traced=True)[0]

    def _guarded(  # noqa: PLR0913 - how trials differ
        self,
        measure: Callable[[list[TrainerProtocol], _Trial], list[RankOutcome]],
        plans: Sequence[Plan],
        timeout_s: float,
        *,
        traced: bool = False,
        rank_context: RankContext | None = None,
        most_models: int = sys.maxsize,
    ) -> list[RankOutcome]:
        """Call `measure` with a trainer for each plan, or with none where these are more than `most_models`; process groups
        are closed afterwards, however it ends.
        """
        trainers: list[TrainerProtocol] = []
        rank_context = replace(rank_context or self._rank_context, timeout_s=timeout_s)
        failure: Exception | None = None
        rank_context.network.begin_scope()
        try:
            if (found := self._fault_before_collectives(plans, rank_context)) is not None:
                return [RankOutcome(fault=found)] * len(plans)
            with Members(self._groups, rank_context, traced=traced) as members:
                self._open_all(plans, members)
                turns = _turns(plans, rank_context)
                trial = _Trial(deadline=time.monotonic() + timeout_s, members=members, turns=turns)
                try:
                    for index, plan in enumerate(plans if len(plans) <= most_models else ()):
                        trainers.append(self._trainer(plan, index, members))
                    outcomes = measure(trainers, trial)
                    return [in_job(one, plan, rank_context.rank) for one, plan in zip(outcomes, plans, strict=True)]
                finally:
                    error = sys.exception()
                    while trainers:
                        trainers.pop().close(error)
                    for turn in turns:
                        if turn is not None:
                            turn.close()
                    del error
        except RankSilentError:
            raise  # the state of that rank is unknown, so that no further order can reach it
        except Exception as error:  # noqa: BLE001 - a user's model may raise anything; the sweep goes on
            # The traceback's frames hold the trainers, which hold the groups: peers wait until these are closed.
            failure = error
            rank_context.network.fail_scope(f"{type(error).__name__}: {error}")
            return [RankOutcome(fault=fault_of(error))] * len(plans)
        finally:
            if self._rank_context.replay is not None:
                self._rank_context.replay.leave()
            give_memory_back(handle(self._rank_context.torch_device), failure)
            del failure

    def _fault_before_collectives(self, plans: Sequence[Plan], rank_context: RankContext) -> Fault | None:
        if self._share is None:
            return None
        return fault_before_collectives(self._workload, plans, rank_context, self._share, seed=self._seed)

    def _open_all(self, plans: Sequence[Plan], members: Members) -> None:
        """Before any trainer is built: where one fails on one rank, no other rank may wait for a group to open."""
        for index, plan in enumerate(plans):
            if (member := members.of(plan)) is not None:
                member.groups.get(member.plan.comm, _use(plan, index))
                if needs_norm_group(self._workload, plan):
                    member.groups.get(*_norms(plan))
                if plan.embedding is not None:
                    member.groups.get(*_tables(plan, index))

    def _trainer(self, plan: Plan, index: int, members: Members) -> TrainerProtocol:
        if (member := members.of(plan)) is None:
            return LeftOut(plan=plan, rank_context=self._rank_context)
        own, context = member.plan, member.rank_context
        group = member.groups.get(own.comm, _use(plan, index))
        if own.is_placed:
            assert self._graph is not None
            traced = self._trace(self._graph) if own.placement is not None else None
            return PlanPipelineTrainer(
                self._workload, own, group, context, seed=self._seed, graph=self._graph, traced=traced
            )
        norms = member.groups.get(*_norms(plan)) if needs_norm_group(self._workload, plan) else None
        if own.embedding is not None:
            rows = member.groups.get(*_tables(plan, index))
            return EmbeddingTrainer(
                self._workload, own, group, context, seed=self._seed, table_group=rows, norm_group=norms
            )
        return Trainer(self._workload, own, group, context, seed=self._seed, norm_group=norms)

    def _trace(self, graph: OpGraph) -> Traced:
        """Of the model, once: every rank finds the same."""
        if self._traced is None:
            torch.manual_seed(self._seed)
            self._traced = trace_workload(self._workload, self._workload.model(), graph)
        return self._traced


def _turns(plans: Sequence[Plan], rank_context: RankContext) -> tuple[TurnEnds | None, ...]:
    """Where several plans take turns: for each that leaves ranks out, what those wait for."""
    if len(plans) < 2:
        return ()
    network, timeout_s = rank_context.network, rank_context.timeout_s
    return tuple(TurnEnds(network, plan, timeout_s=timeout_s) if plan.leaves_out else None for plan in plans)


def _use(plan: Plan, index: int) -> str:
    """Plans of one use share a group. Scheduled and pipelined plans post in an order of their own and do not share."""
    return f"plan {index}" if plan.comm.is_scheduled or plan.is_placed else ""


def _norms(plan: Plan) -> tuple[CommPlan, str]:
    """Communication configuration and use of the group for BatchNorm statistics, which interleaved trainers share."""
    return CommPlan(transport=plan.comm.transport), "batch norm"


def _tables(plan: Plan, index: int) -> tuple[CommPlan, str]:
    """Communication configuration and use of the group for the rows of embedding tables."""
    return CommPlan(transport=plan.comm.transport), f"tables {index}"


def _parameters(trainer: TrainerProtocol) -> Tensor:
    """All parameters in one vector, up to date."""
    parameters = [parameter.detach().double().reshape(-1) for parameter in trainer.whole_model().parameters()]
    return torch.cat(parameters) if parameters else torch.zeros(0, dtype=torch.float64)


def _warm_up(trainer: TrainerProtocol, num_steps: int, deadline: float) -> None:
    """At least one step, which meters memory."""
    trainer.metered_step()
    _run(trainer, max(num_steps - 1, 0), deadline)


def _run(trainer: TrainerProtocol | RetunedTrainer, num_steps: int, deadline: float) -> tuple[float, list[TrainedStep]]:
    """Run `num_steps` steps; the CPU time per step, and the steps."""
    cpu_s = time.process_time()
    steps: list[TrainedStep] = []
    for _ in range(num_steps):
        if time.monotonic() > deadline:
            raise TrialTimeoutError("the time limit of the trial has passed")
        steps.append(trainer.step())
    return (time.process_time() - cpu_s) / max(num_steps, 1), steps
