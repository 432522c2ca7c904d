"""Executes a timetable: forward and backward of the parts of a model per micro-batch, messages between ranks, exact gradients.

Any order runs, Tessel's (arXiv 2311.15269) or another: each rank runs its slots in order and waits for the inputs of each. The
outputs of a part are detached, so a backward covers one part only, and the gradients of its inputs are sent to the
ranks that made them. The loss of a micro-batch is weighted by its share of the samples, so the sum over micro-batches is the
gradient of the mean over the batch, also for uneven ones. Gradients of shared parameters (tied layers, lanes) are summed at
the end of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.profilers.timeline import Span
from autotune.runtime.device import CPU, Stamp, handle
from autotune.runtime.emulate.block_pacer import BlockPacer
from autotune.runtime.placed.batch_cut import BatchCut
from autotune.runtime.placed.mailbox import Mailbox
from autotune.runtime.placed.parts import ROWS, Part, Program
from autotune.runtime.placed.pipeline_step import PipelineStep
from autotune.runtime.placed.routes import Message, Task, make_routes
from autotune.runtime.placed.shards import Peers, Sharded
from autotune.runtime.placed.shared_gradients import SharedGradients
from autotune.runtime.placed.weight_parts import Notes, WeightParts
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, Timetable
from autotune.workloads.errors import SpecError
from autotune.workloads.pass_names import span_name

_WAIT_S = 0.0002
"""A receive that takes longer is a wait: the emulated device was idle. Below it, the device is late and may catch up."""


@dataclass(kw_only=True, slots=True)
class _Held:
    """Tensors of a part and micro-batch that are held from forward to backward."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...] = ()
    """Of the outputs; set by the input half of a split backward."""
    notes: Notes | None = None
    """Of a split backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """A pass of a block in this step."""

    kind: str
    name: str
    begun: Stamp
    ended: Stamp


class Executor:
    """One rank of a pipeline. `modules`: of the parts that this rank runs, by name, on `device`."""

    def __init__(  # noqa: PLR0913 - the parts of an executor
        self,
        program: Program,
        table: Timetable,
        modules: Mapping[str, nn.Module],
        group: dist.ProcessGroup,
        *,
        timeout_s: float = 600.0,
        device: torch.device | None = None,
        pacer: BlockPacer | None = None,
    ) -> None:
        if group.size() != program.graph.num_devices:
            raise SpecError(
                f"the blocks are on {program.graph.num_devices} devices but the job has {group.size()} ranks: start one for each"
            )
        self.rank = group.rank()
        routes = make_routes(program, table)
        self.program, self._tasks = program, routes.tasks[self.rank]
        self._num_microbatches = table.num_microbatches
        self._device = CPU if device is None else handle(device)
        self._mailbox = Mailbox(group, routes.tags, timeout_s=timeout_s, device=self._device.device)
        mine = [part for part in program.parts if self.rank in program.devices[part.name]]
        if missing := [part.name for part in mine if part.name not in modules]:
            raise SpecError(f"rank {self.rank} runs parts {', '.join(missing)}, of which no module was given")
        self.modules = {part.name: modules[part.name] for part in mine}
        for part in mine:
            module = self.modules[part.name]
            if isinstance(module, Sharded):
                module.peers = Peers(self._mailbox, program.devices[part.name], program.parts.index(part))
        self.model = nn.ModuleList({id(module): module for module in self.modules.values()}.values())
        """All modules of this rank, each once: the model of its optimizer."""
        self._shared = SharedGradients(program, self.modules, self.rank)
        self._weight_parts = {
            part.name: WeightParts(self.modules[part.name])
            for part in mine
            if part.backward and part.backward not in program.graph.index
        }
        self._pacer = pacer
        self._held: dict[tuple[str, int], _Held] = {}
        self._passes: list[_Pass] = []
        self._losses: list[Tensor] = []
        self.results: dict[str, list[Tensor]] = {}
        """Outputs of parts without backward and readers in the last step, per micro-batch."""

    def step(
        self, batch: Sequence[Tensor], cut: BatchCut, *, watch: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> PipelineStep:
        """Run one step: the gradients of the whole batch replace those in `model`. Every rank passes the same `batch`."""
        cut.check(self.program.num_lanes, self._num_microbatches, len(batch[0]))
        self._passes, self._losses = [], []
        self.results = defaultdict(list)
        self.model.zero_grad(set_to_none=True)
        begun = self._device.stamp()
        if self._pacer is not None:
            self._pacer.begin()
        try:
            self._mailbox.begin(cut.samples)
            with watch():
                self._run(batch, cut)
            computed = self._device.stamp()
            self._shared.sum(self._mailbox)
            self._mailbox.finish()
        except BaseException:
            self.close()
            raise
        end_s = self._device.stamp().seconds
        late_s = self._pacer.late_s if self._pacer is not None else 0.0
        return PipelineStep(
            begin_s=begun.seconds,
            data_s=begun.seconds,
            computed_s=computed.seconds,
            reduced_s=end_s,
            end_s=end_s,
            loss_share=sum(torch.stack(self._losses).tolist()) if self._losses else 0.0,
            spans=tuple(self._spans(begun.seconds)),
            late_s=late_s,
        )

    @property
    def buffer_bytes(self) -> int:
        """Communication buffers besides the gradients; messages in flight are not counted."""
        return self._shared.buffer_bytes

    def close(self) -> None:
        """Release the group and everything in flight."""
        self._held.clear()
        self._mailbox.close()
        for module in self.modules.values():
            if isinstance(module, Sharded):
                module.peers = None

    def _run(self, batch: Sequence[Tensor], cut: BatchCut) -> None:
        begun = ready = self._device.stamp()
        for place, task in enumerate(self._tasks):
            for near in self._tasks[place : place + 2]:
                self._mailbox.post(near.needs)
            needed = self._device.stamp()
            pieces = {message: self._mailbox.take(message) for message in task.needs}
            ready = self._device.stamp()
            if self._pacer is not None and ready.seconds - needed.seconds > _WAIT_S:
                self._pacer.wake()
            if task.begins_block:
                begun = ready
            if task.kind == FORWARD:
                outputs = self._forward(task, pieces, batch, cut)
            else:
                outputs = self._backward(task, pieces, cut)
            if self._pacer is not None:
                self._pacer.charge(task.part.name, task.kind, cut.samples[task.part.lane][task.microbatch])
            for message in task.gives:
                self._mailbox.send(message, outputs(message))
            if task.ends_block:
                kind = FORWARD if task.kind == FORWARD else BACKWARD
                name = span_name(task.block, task.microbatch)
                self._passes.append(_Pass(kind=kind, name=name, begun=begun, ended=self._device.stamp()))

    def _spans(self, last_s: float) -> Iterator[Span]:
        """The passes of this step, and the waits before them."""
        for one in self._passes:
            begun_s, ended_s = one.begun.seconds, one.ended.seconds
            if begun_s > last_s:
                yield Span(rank=self.rank, track="host", kind="wait", op=one.name, start_s=last_s, end_s=begun_s)
            yield Span(rank=self.rank, track="compute", kind=one.kind, op=one.name, start_s=begun_s, end_s=ended_s)
            last_s = ended_s

    def _forward(
        self, task: Task, pieces: dict[Message, Tensor], batch: Sequence[Tensor], cut: BatchCut
    ) -> Callable[[Message], Tensor]:
        part, keeps = task.part, bool(task.part.backward)
        inputs = tuple(self._whole(part, index, pieces, task) for index in range(len(part.inputs)))
        if keeps:
            inputs = tuple(value.requires_grad_() if value.is_floating_point() else value for value in inputs)
        rows = cut.rows(part.lane, task.microbatch)
        data = [self._device.to_device(batch[index][rows]) for index in part.data]
        given = [*inputs, *data]
        if part.whole == ROWS:
            given = [value.tensor_split(task.num_shards)[task.shard] for value in given]
        split = self._weight_parts.get(part.name)
        with torch.set_grad_enabled(keeps), split.noting() if split else nullcontext() as notes:
            made = self.modules[part.name](*given)
        outputs: tuple[Tensor, ...] = made if isinstance(made, tuple) else (made,)
        if len(outputs) != part.num_outputs:
            raise SpecError(f"part {part.name!r} gave {len(outputs)} outputs but is said to have {part.num_outputs}")
        if part.loss_weight and task.shard == 0:
            loss = outputs[0].detach().double()
            self._losses.append(loss * cut.weight(part.lane, task.microbatch) * part.loss_weight)
        if keeps:
            self._held[part.name, task.microbatch] = _Held(inputs=inputs, outputs=outputs, notes=notes)
        elif not task.gives:
            self.results[part.name] += outputs
        program = self.program
        return lambda message: outputs[program.by_name[message.reader].inputs[message.index].output].detach()

    def _backward(self, task: Task, pieces: dict[Message, Tensor], cut: BatchCut) -> Callable[[Message], Tensor]:
        part, key = task.part, (task.part.name, task.microbatch)
        held = self._held[key]
        if task.kind in (BACKWARD, INPUT):
            held.gradients = tuple(self._gradient(task, index, pieces, held, cut) for index in range(part.num_outputs))
        made = [index for index, output in enumerate(held.outputs) if output.requires_grad]
        outputs, gradients = [held.outputs[index] for index in made], [held.gradients[index] for index in made]
        if held.notes is None:
            if outputs:
                torch.autograd.backward(outputs, gradients)
        elif task.kind == INPUT:
            held.notes.inputs(outputs, gradients, held.inputs)
        else:
            held.notes.weights(outputs, gradients)
        if task.kind != INPUT:
            del self._held[key]
        found = tuple(value.grad if value.grad is not None else torch.zeros_like(value) for value in held.inputs)
        return lambda message: self._share(found[message.index], message)

    def _whole(self, part: Part, index: int, pieces: dict[Message, Tensor], task: Task) -> Tensor:
        """An input, assembled from the shards of the part that is read."""
        source = self.program.by_name[part.inputs[index].part]
        found = [pieces[message] for message in task.needs if message.index == index]
        if len(found) == 1:
            return found[0].detach()
        return torch.cat(found) if source.whole == ROWS else torch.stack(found).sum(0)

    def _gradient(self, task: Task, output: int, pieces: dict[Message, Tensor], held: _Held, cut: BatchCut) -> Tensor:
        """The gradient of an output: the sum over all readers."""
        part, total = task.part, torch.zeros_like(held.outputs[output])
        if part.loss_weight:
            total += cut.weight(part.lane, task.microbatch) * part.loss_weight
        for message, piece in pieces.items():
            if self.program.by_name[message.reader].inputs[message.index].output == output:
                total += piece
        return total

    def _share(self, gradient: Tensor, message: Message) -> Tensor:
        """The part of an output's gradient that one shard needs."""
        source = self.program.by_name[message.reader].inputs[message.index].part
        devices = self.program.devices[source]
        if self.program.by_name[source].whole == ROWS and len(devices) > 1:
            return gradient.tensor_split(len(devices))[devices.index(message.receiver)]
        return gradient
