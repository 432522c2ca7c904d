"""Trainer of a plan with pipeline stages: the same steps, memory meter, trace and shutdown as data-parallel training."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import nn

from autotune.profilers.ranges import Ranges
from autotune.runtime.placed.pipeline_step import PipelineStep
from autotune.runtime.placed.placed_job import placed_job
from autotune.runtime.placed.plan_job import plan_job
from autotune.runtime.placed.trainer import PipelineTrainer
from autotune.runtime.train.trainer import RankContext
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import Plan
from autotune.workloads.tensor_graph.traced import Traced
from autotune.workloads.workload import Workload


class PlanPipelineTrainer(PipelineTrainer):
    """One rank of a plan with stages or groups of ops. `graph`: the ops that the plan indexes; `traced`: for groups, the model."""

    def __init__(  # noqa: PLR0913 - the parts of a trainer
        self,
        workload: Workload,
        plan: Plan,
        group: dist.ProcessGroup,
        rank_context: RankContext,
        *,
        seed: int,
        graph: OpGraph,
        traced: Traced | None = None,
    ) -> None:
        paced = rank_context.graph is not None
        if plan.placement is not None:
            assert traced is not None
            job = placed_job(workload, plan, graph, traced, paced=paced)
        else:
            job = plan_job(workload, plan, graph, paced=paced)
        super().__init__(job, group, rank_context, seed=seed)
        self.plan, self.group = plan, group
        self.ranges = Ranges()
        self._workload = workload
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
        """The state of all parts, each from the first rank that holds it; a collective call."""
        model, program = self._workload.model(), self.executor.program
        assembly = self.job.assemble(model)
        copied: set[tuple[int, ...]] = set()
        for part in program.parts:
            theirs = assembly.builders[part.name](0, 1)  # whose tensors are the model's own
            tensors = tuple(map(id, theirs.state_dict(keep_vars=True).values()))
            if tensors in copied:
                continue
            copied.add(tensors)
            owner = program.devices[part.name][0]
            if self.rank_context.rank == owner:
                _copy(self.executor.modules[part.name], theirs)
            for tensor in theirs.state_dict().values():
                options = dist.BroadcastOptions()
                options.rootRank = owner
                self.group.broadcast([tensor], options).wait()
        return model

    def close(self, error: BaseException | None = None) -> None:  # noqa: ARG002 - as the data-parallel trainer is ended
        """Release the group: while a reference to it exists, peers do not detect that this rank has left."""
        super().close()
        if hasattr(self, "group"):
            del self.group


def _copy(source: nn.Module, target: nn.Module) -> None:
    """Both are made by the same builder, so number and order of the tensors are the same."""
    for held, wanted in zip(source.state_dict().values(), target.state_dict().values(), strict=True):
        wanted.copy_(held)
