"""Chains by torch.distributed.pipelining, from the CSV that `autotune schedule --csv` writes: the other runner, to compare ours with.

Its runtime for schedules of one's own is private (`_PipelineScheduleRuntime`), so this module is the only one that touches it,
and it refuses a torch that it has not been tried with. It runs chains with one rank per stage, on torch's default process group, with
micro-batches of equal size; what stages share (tied layers) it does not sum, so that is done here as in our executor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.runtime.placed.mailbox import Mailbox
from autotune.runtime.placed.parts import Program
from autotune.runtime.placed.shared_gradients import SharedGradients
from autotune.runtime.placed.stages import LossStage
from autotune.workloads.errors import SpecError
from autotune.workloads.workload import Workload

TRIED_WITH = ("2.13",)


class TorchChain:
    """One rank of a chain. `program`: a chain of one lane, as `add_chain` makes it; `csv`: a row per rank, `2F0,2B0,…`."""

    def __init__(  # noqa: PLR0913 - what a runner is made of
        self,
        workload: Workload,
        program: Program,
        modules: Mapping[str, nn.Module],
        csv: str,
        *,
        num_microbatches: int,
        timeout_s: float = 600.0,
    ) -> None:
        check_version(torch.__version__)
        if not dist.is_initialized():
            raise SpecError(
                "torch.distributed.pipelining runs on the default process group: call init_process_group first"
            )
        _check_chain(program)
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

        self._workload, self._num = workload, num_microbatches
        self.model = nn.ModuleList(modules.values())
        device = torch.device("cpu")
        stages = []
        for index, part in enumerate(program.parts):
            if part.name in modules:
                module = modules[part.name]
                if isinstance(module, LossStage):
                    module = module.module
                stages.append(PipelineStage(module, index, len(program.parts), device))
        if not stages:
            raise SpecError(
                f"rank {dist.get_rank()} has no stage: torch.distributed.pipelining needs one on every rank"
            )
        self._indices = {stage.stage_index for stage in stages}
        self._last = len(program.parts) - 1
        self._schedule = _PipelineScheduleRuntime(stages, num_microbatches, loss_fn=self._loss)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "order.csv"
            path.write_text(csv, encoding="utf-8")
            self._schedule._load_csv(str(path))
        group = dist.distributed_c10d._get_default_group()
        self._mailbox = Mailbox(group, {}, timeout_s=timeout_s, device=device)
        self._shared = SharedGradients(program, modules, dist.get_rank())

    def step(self, batch: Sequence[Tensor]) -> float:
        """Leave the gradient of the whole batch in `model`; the loss, on the rank of the last stage, and 0 elsewhere."""
        inputs, targets = batch
        if len(inputs) % self._num:
            raise SpecError(f"{len(inputs)} samples in {self._num} micro-batches: torch's runtime wants equal ones")
        self.model.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        given = (inputs,) if 0 in self._indices else ()
        if self._last in self._indices:
            self._schedule.step(*given, target=targets, losses=losses, return_outputs=False)
        else:
            self._schedule.step(*given, return_outputs=False)
        self._shared.sum(self._mailbox)
        return sum(float(loss.detach()) for loss in losses) / self._num

    def close(self) -> None:
        """Let go of the group."""
        self._mailbox.close()

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._workload.loss(_Done(output), (output, target))


class _Done(nn.Module):
    """A model that has run already."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_inputs: Tensor) -> Tensor:
        return self._output


def check_version(version: str) -> None:
    """Private API changes without notice."""
    if not any(version.startswith(f"{tried}.") for tried in TRIED_WITH):
        raise SpecError(
            f"torch is {version} but its private runtime of pipelines is known here as of {', '.join(TRIED_WITH)} only: "
            "use our own executor, or that torch"
        )


def _check_chain(program: Program) -> None:
    for number, part in enumerate(program.parts):
        reads = [source.part for source in part.inputs]
        expected = [program.parts[number - 1].name] if number else []
        if reads != expected or part.lane or len(program.devices[part.name]) > 1:
            raise SpecError(
                f"part {part.name!r} makes this no chain of stages on single devices, and torch.distributed.pipelining runs "
                "chains only: use our own executor"
            )
