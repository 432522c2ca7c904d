"""Trainer of a plan with pipeline stages: the same steps, memory meter, trace and shutdown as data-parallel training."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import nn

from autotune.profilers.ranges import Ranges
from autotune.runtime.placed.pipeline_step import PipelineStep
from autotune.runtime.placed.plan_job import plan_job
from autotune.runtime.placed.stages import first_modules, stage_modules
from autotune.runtime.placed.trainer import PipelineTrainer
from autotune.runtime.train.trainer import RankContext
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.workload import Workload


class PlanPipelineTrainer(PipelineTrainer):
    """One rank of a plan with stages. `graph`: the ops that the plan's cut indexes."""

    def __init__(  # noqa: PLR0913 - the parts of a trainer
        self,
        workload: Workload,
        plan: Plan,
        group: dist.ProcessGroup,
        rank_context: RankContext,
        *,
        seed: int,
        graph: OpGraph,
    ) -> None:
        super().__init__(
            plan_job(workload, plan, graph, paced=rank_context.graph is not None), group, rank_context, seed=seed
        )
        self.plan, self.group = plan, group
        self.ranges = Ranges()
        self._workload, self._graph = workload, graph
        self._trained_s = 0.0

    def step(self) -> PipelineStep:
        return self._timed(super().step)

    def metered_step(self) -> PipelineStep:
        return self._timed(super().metered_step)

    def _timed(self, take: Callable[[], PipelineStep]) -> PipelineStep:
        """A step; with a scenario, on the device that the scenario gives this rank."""
        if self.rank_context.replay is not None:
            device = self.rank_context.replay.enter(num_steps=self.num_steps, trained_s=self._trained_s)
            if self.pacer is not None:
                self.pacer.device = device
        step = take()
        self._trained_s += step.total_s
        return step

    def barrier(self) -> None:
        """Barrier over all ranks; after a step nothing is in flight."""
        self.group.barrier().wait()

    def flush(self) -> None:
        """After a step nothing is in flight."""

    def record_collectives(self, *, on: bool) -> None:
        """Every step records its passes and waits anyway."""

    def whole_model(self) -> nn.Module:
        """The state of all stages, each from the first rank that holds it; a collective call."""
        pipeline = self.plan.pipeline
        assert pipeline is not None
        model = self._workload.model()
        modules = stage_modules(self._workload, model)
        ends = [*first_modules(self._graph, model, modules, pipeline.first_ops), len(modules)]
        for stage, ranks in enumerate(pipeline.stage_ranks):
            theirs = nn.Sequential(*modules[ends[stage] : ends[stage + 1]])
            if self.rank_context.rank == ranks[0]:
                _copy(self._own_stage(stage), theirs)
            for tensor in theirs.state_dict().values():
                options = dist.BroadcastOptions()
                options.rootRank = ranks[0]
                self.group.broadcast([tensor], options).wait()
        return model

    def _own_stage(self, stage: int) -> nn.Module:
        return next(module for name, module in self.executor.modules.items() if name.endswith(f".{stage}"))

    def close(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - as the data-parallel trainer is ended
        """Release the group: while a reference to it exists, peers do not detect that this rank has left."""
        super().close()
        if hasattr(self, "group"):
            del self.group


def _copy(source: nn.Module, target: nn.Module) -> None:
    """The last stage is wrapped with its loss: names differ, but number and order of the tensors are the same."""
    for held, wanted in zip(source.state_dict().values(), target.state_dict().values(), strict=True):
        wanted.copy_(held)
