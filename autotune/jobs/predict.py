"""Predictions: the step of a workload on a cluster, without running anything.

The model is captured, the costs are looked up (a kept profile of this workload on this cluster, profiles named by the user,
the speeds in the cluster file), and the simulator predicts the step. Nothing here needs MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from autotune.jobs.context import (
    JobContext,
    capture_workload,
    graph_bounds,
    job_bounds,
    with_dataflow,
    with_held_bytes,
    workload_info,
)
from autotune.jobs.job import Job, SweepJob, read_plan_file
from autotune.jobs.question import Question
from autotune.placement.chain_costs import at_cuts, stage_costs
from autotune.placement.chain_cut import cuts as find_cuts
from autotune.placement.chain_cut import judge
from autotune.placement.pipeline_plans import staged_plans
from autotune.results.store.best import best_path, load_best
from autotune.results.store.forecast import Forecast
from autotune.results.store.profile import CollectiveProfile, Profile, joint_fingerprint
from autotune.results.store.profile_file import load_profile, profile_path
from autotune.results.store.record import WorkloadInfo
from autotune.runtime.placed.find_cuts import stage_cuts
from autotune.runtime.placed.placed_job import trace_workload
from autotune.search.predicted_costs import rank_costs
from autotune.search.problem import Problem
from autotune.search.rank_sets import as_choices, left_out_ranks, worthwhile_sets
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.space.pipeline_points import NO_STAGES, StagedPlans
from autotune.space.rank_sets import ALL_RANKS, RankSets
from autotune.space.space import Space
from autotune.workloads.blocks import BlockGraph
from autotune.workloads.changes.cluster_edits import Setting, edited
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.errors import InfeasiblePlanError, SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.graphs.graph_file import GraphWorkload, read_graph_workload
from autotune.workloads.model_stages import StageCuts, with_streams
from autotune.workloads.plan import BatchPlan, PipelinePlan, Plan, default_plan
from autotune.workloads.registry import is_graph_file, load_workload
from autotune.workloads.split import Bounds, balanced, even
from autotune.workloads.tensor_graph.operations import Operations, operations_of
from autotune.workloads.workload import Workload, loop_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictor:
    """A simulator with the cluster, the bounds and the cuts that it predicts for."""

    simulator: Simulator
    bounds: Bounds
    cluster: Cluster
    cuts: StageCuts | None = None
    """Where the model can be cut into stages, if it can."""
    trace: Callable[[], Operations] | None = None
    """Finds the operations of the model; it takes seconds."""

    def placing(self) -> Predictor:
        """A predictor of plans with groups of ops too; SpecError where the model cannot be traced."""
        if self.trace is None or self.simulator.operations is not None:
            return self
        known, operations = self.simulator, self.trace()
        simulator = Simulator(known.info, known.graph, known.costs, loop=known.loop, operations=operations)
        return replace(self, simulator=simulator)

    @property
    def total(self) -> int:
        return self.simulator.info.global_batch

    def staged(self, transports: Sequence[str], *, runs_only: bool = True) -> StagedPlans:
        """Plans with pipeline stages, where they can run. `runs_only`: none that is predicted but not run by any job yet."""
        if "gloo" not in transports:
            return NO_STAGES
        than = Plan(batch=BatchPlan(samples=self.balanced_split()))
        return staged_plans(self.simulator, self.cuts, than, runs_only=runs_only)

    def space(self, transports: Sequence[str], *, allow_lossy: bool, runs_only: bool = True) -> Space:
        known = [name for name in transports if name in self.simulator.costs.transports]
        problem = Problem(
            global_batch=self.total,
            param_bytes=self.simulator.info.param_bytes,
            graph=self.simulator.graph,
            cluster=self.cluster,
            limits=self.bounds,
            transports=tuple(known or transports[:1]),
            loop=self.simulator.loop,
            staged=self.staged(known or transports, runs_only=runs_only),
        )
        return problem.space(allow_lossy=allow_lossy)

    def balanced_split(self) -> tuple[int, ...]:
        """The split that balances the devices by their costs."""
        return balanced(rank_costs(self.simulator), self.total, self.bounds)


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedModel:
    """What the user wants predicted: a workload whose model was captured, or the op graph in a file."""

    workload: Workload | GraphWorkload
    graph: OpGraph
    cuts: StageCuts | None
    job: Job
    """Names the workload in forecasts: a graph by the name in its file."""

    @property
    def info(self) -> WorkloadInfo:
        return self.info_of(self.workload.global_batch)

    def info_of(self, global_batch: int) -> WorkloadInfo:
        return workload_info(self.job, global_batch, self.graph, loop=loop_of(self.workload))

    def bounds(self, setting: Setting) -> Bounds:
        if isinstance(self.workload, GraphWorkload):
            return graph_bounds(self.workload, setting.cluster, total=setting.global_batch)
        return job_bounds(self.workload, self.graph, setting.cluster, total=setting.global_batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictorSource:
    """Makes predictors for the cluster that a question names, and for changes of it."""

    setting: Setting
    """As the question states it."""
    model: DescribedModel
    profiles: Sequence[Profile]
    trace: Callable[[], Operations]

    def of(self, setting: Setting) -> Predictor:
        model = self.model
        costs = cost_model(model.graph, setting.cluster, self.profiles)
        info = model.info_of(setting.global_batch)
        simulator = Simulator(info, model.graph, costs, loop=loop_of(model.workload))
        bounds = model.bounds(setting)
        return Predictor(simulator=simulator, bounds=bounds, cluster=setting.cluster, cuts=model.cuts, trace=self.trace)


def predictor_source(question: Question, wanted: PipelinePlan | None = None) -> PredictorSource:
    """`wanted`: stages of a plan that is to be predicted."""
    (spec,) = question.clusters
    cluster = load_cluster(spec)
    if cluster.any_ranks or question.num_ranks is not None:
        cluster = cluster.for_ranks(question.num_ranks or 1)
    whole = described_model(question)
    described = _with_edges(whole, wanted, question.seed)
    return PredictorSource(
        setting=Setting(cluster=cluster, global_batch=described.workload.global_batch),
        model=described,
        profiles=find_profiles(described, question, cluster),
        trace=partial(operations_in, whole, question.seed),
    )


def make_predictors(question: Question) -> list[Predictor]:
    """For the cluster as it is and, with --what-if, as edited."""
    wanted = read_plan_file(question.plan_file).plan if question.plan_file is not None else None
    source = predictor_source(question, None if wanted is None else wanted.pipeline)
    settings = [source.setting]
    if question.what_if:
        settings.append(edited(source.setting, question.what_if))
    found = [source.of(setting) for setting in settings]
    return found if wanted is None or wanted.placement is None else [one.placing() for one in found]


def described_model(question: Question) -> DescribedModel:
    """The workload that the question names, captured or read from its file."""
    if is_graph_file(question.workload):
        file = read_graph_workload(question.workload, question.options)
        job = replace(question, workload=file.name)
        return DescribedModel(workload=file, graph=file.graph, cuts=file.cuts, job=job)
    workload, seed = load_workload(question.workload, question.options), question.seed
    graph = with_held_bytes(capture_workload(workload, seed, name=question.workload), workload, seed)
    return DescribedModel(workload=workload, graph=graph, cuts=stage_cuts(workload, graph, seed), job=question)


def operations_in(model: DescribedModel, seed: int) -> Operations:
    """What can be placed: the operations of a trace, or the ops of a graph file."""
    if isinstance(model.workload, GraphWorkload):
        return operations_of(model.graph)
    return _traced(model.workload, model.graph, seed)


def _traced(workload: Workload, graph: OpGraph, seed: int) -> Operations:
    torch.manual_seed(seed)
    return trace_workload(workload, workload.model(), graph).operations


def _with_edges(model: DescribedModel, wanted: PipelinePlan | None, seed: int) -> DescribedModel:
    """With the tensors at the model's cuts or, for a plan with other cuts, with all that pass between ops."""
    cuts = model.cuts
    if cuts is not None and (wanted is None or set(wanted.first_ops) <= set(cuts.first_ops)):
        return replace(model, graph=with_streams(model.graph, cuts))
    if wanted is None or isinstance(model.workload, GraphWorkload):
        return model
    return replace(model, graph=with_dataflow(model.graph, model.workload, seed))


def job_simulator(
    job: Job, context: JobContext, all_reduces: tuple[CollectiveProfile, ...] = (), *, placing: bool = False
) -> Simulator | None:
    """A simulator for a running job, where its devices were profiled before or their speeds are stated.

    `all_reduces`: measured by this job, used where there is no profile. `placing`: also of plans with groups of ops.
    """
    profiles = kept_profiles(job.results, context.info, context.cluster)
    if not profiles and any(device.flops_per_s is None for device in context.cluster.devices):
        return None
    if not profiles and all_reduces:
        measured = Profile(
            workload=context.info.name,
            cluster=context.cluster.name,
            cluster_fingerprint=context.cluster.fingerprint(),
            label=context.cluster.label,
            ranks=(),
            collectives=all_reduces,
        )
        profiles = [measured]
    graph = with_held_bytes(context.graph, context.workload, job.seed)
    cuts = stage_cuts(context.workload, graph, job.seed)
    graph = graph if cuts is None else with_streams(graph, cuts)
    costs = cost_model(graph, context.cluster, profiles)
    operations = _traced(context.workload, context.graph, job.seed) if placing else None
    return Simulator(context.info, graph, costs, loop=context.loop, operations=operations)


def job_pipelines(job: SweepJob, context: JobContext, simulator: Simulator | None) -> StagedPlans:
    """Plans with pipeline stages for a running job; none where nothing can be predicted, or its transports cannot run them."""
    if simulator is None or "gloo" not in context.transports or job.sampler == "random":
        return NO_STAGES
    than = Plan(batch=BatchPlan(samples=even(context.info.global_batch, context.limits)))
    return staged_plans(simulator, stage_cuts(context.workload, simulator.graph, job.seed), than)


def job_rank_sets(job: SweepJob, context: JobContext, simulator: Simulator | None) -> RankSets:
    """Sets of ranks that leave devices out, for a running job; none where nothing can be predicted."""
    if simulator is None or job.sampler == "random":
        return ALL_RANKS
    return as_choices(worthwhile_sets(simulator, context.problem.space(allow_lossy=False), simulator.fitting_step_s))


def kept_profiles(results: Path, info: WorkloadInfo, cluster: Cluster) -> list[Profile]:
    """The profile of this workload on this cluster, if there is one."""
    fingerprint = joint_fingerprint(info.fingerprint, cluster.fingerprint())
    path = profile_path(results, info.name, cluster.name, fingerprint)
    return [load_profile(path)] if path.exists() else []


def find_profiles(model: DescribedModel, question: Question, cluster: Cluster) -> list[Profile]:
    """The profiles that the user names, or the one kept for this workload on this cluster, or none."""
    if question.profiles:
        return [load_profile(path) for path in question.profiles]
    return kept_profiles(question.results, model.info, cluster)


def simulate(question: Question, predictors: Sequence[Predictor]) -> list[Forecast]:
    """The prediction for a plan on the cluster as it is and, with --what-if, as edited."""
    chosen = _chosen_plan(question, predictors[0])
    return [forecast_of(predictor, _fitted(chosen, predictor)) for predictor in predictors]


def forecast_of(predictor: Predictor, plan: Plan) -> Forecast:
    """All figures of a plan, and what the devices that it leaves out would change."""
    left_out = left_out_ranks(predictor.simulator, plan, predictor.bounds)
    return replace(predictor.simulator.forecast(plan), left_out=left_out)


def _chosen_plan(question: Question, predictor: Predictor) -> Plan:
    info = predictor.simulator.info
    if question.plan_file is not None:
        return _predictable(read_plan_file(question.plan_file).plan)
    kept = best_path(question.results, info.name, predictor.cluster.name)
    if question.plan == "best" or (question.plan is None and kept.exists()):
        sweep = question.commands(len(predictor.cluster.devices)).command("sweep")
        return _predictable(load_best(question.results, info.name, predictor.cluster.name, sweep=sweep).plan)
    return default_plan(even(info.global_batch, predictor.bounds), transport=question.transports[0])


def _predictable(plan: Plan) -> Plan:
    plan.check_predictable()
    return plan


def _fitted(plan: Plan, predictor: Predictor) -> Plan:
    """The plan itself where it fits; after edits of ranks or batch, with the balanced split."""
    samples = plan.batch.samples
    if plan.is_placed or (len(samples) == len(predictor.cluster.devices) and sum(samples) == predictor.total):
        return plan
    return replace(plan, batch=replace(plan.batch, samples=predictor.balanced_split()))


def stage_blocks(predictor: Predictor, num_stages: int | None, micro_batches: int) -> BlockGraph:
    """The best cut into stages, one per device, as blocks of one of these micro-batches."""
    if predictor.cuts is None:
        raise SpecError(
            f"{predictor.simulator.info.name!r} cannot be cut into stages: it is no sequence of modules or ops"
        )
    if not 1 <= micro_batches <= predictor.total // max(predictor.cuts.min_samples, 1):
        raise SpecError(
            f"--micro-batches {micro_batches}: a batch of {predictor.total} has fewer samples: ask for less"
        )
    most = min(len(predictor.cluster.devices), len(predictor.cuts.first_ops))
    size = num_stages or most
    if not 1 <= size <= most:
        raise SpecError(f"--stages {size}: there must be 1 to {most}, one device and one op for each")
    whole = stage_costs(predictor.simulator.graph, predictor.simulator.costs, predictor.total / micro_batches)
    costs = at_cuts(whole, predictor.cuts.first_ops)
    found = [judge(costs, cut, micro_batches) for cut in find_cuts(costs, micro_batches, size)]
    fitting = [one for one in found if one is not None]
    if not fitting:
        raise InfeasiblePlanError(
            f"no cut into {size} stages fits the devices of {predictor.cluster.name!r}: use more devices, or micro-batches"
        )
    return min(fitting, key=lambda one: one.makespan_s).graph
