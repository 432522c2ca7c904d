"""Predicts the step time of a plan on a cluster: the plan becomes tasks, the tasks run in the event engine.

A search calls `Simulator.step_s` thousands of times; `forecast` adds the figures of a report; `timeline` makes the same
`Timeline` as a traced run. The simulator reads a plan as the runtime does: the same buckets, the same loads on links, the same
order, and the loop that the workload states: gradient accumulation, and clipping, which needs all gradients and
therefore ends every step with a barrier. The time of clipping itself is not counted, nor that of the optimizer where no
profile has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from autotune.profilers.breakdown import break_down
from autotune.profilers.timeline import Timeline
from autotune.results.store.forecast import Forecast, RankForecast
from autotune.results.store.record import Limit, Prediction, WorkloadInfo
from autotune.results.text.cluster_text import cluster_tree
from autotune.simulate.cost_tables import NO_OVERHEAD, Costs, LikeRanks, held_bytes
from autotune.simulate.data_parallel import FusionBuffers, StepCosts, expand
from autotune.simulate.engine import Run, simulate
from autotune.simulate.layout import Layout
from autotune.simulate.limit import least_sample_s, placed_limit, step_limit
from autotune.simulate.messages import FusionBufferMaker, Sends, codec_s, link_speeds, make_stage_site
from autotune.simulate.passes import step_passes
from autotune.simulate.pipeline import (
    connections,
    expand_pipeline,
    param_shares,
    shared_bytes,
    span_names,
    stage_table,
)
from autotune.simulate.placed import PlacedStep, expand_placement, placed_shares
from autotune.simulate.spans import Simulated, spans, spread
from autotune.simulate.task_graph import Floats, Ints, Site, Tasks
from autotune.simulate.tasks import NO_LIMIT, make_site
from autotune.workloads.blocks import Timetable
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CODECS, TRANSPORTS, CommPlan, PipelinePlan, Plan, ReducerKind
from autotune.workloads.tensor_graph.operations import Operations
from autotune.workloads.workload import PLAIN_LOOP, Loop, check_no_stages

_OVERLAPPED_STEPS = 4
"""Steps until steady state, with cross-step overlap."""
_KEPT_BUFFERS = 256
_KEPT_PARTS = 64
_NOTHING = np.zeros((0, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a search asks of a plan. Of a rank that is left out all is 0."""

    step_s: float
    peak_memory_bytes: Floats
    """Per rank."""
    busy_s: Floats
    """Per rank: seconds of a step in which its device computes."""
    num_tasks: int
    """That were simulated."""


class Simulator:
    """Predicts plans for one workload on one cluster.

    A plan that leaves ranks out is the plan of a smaller cluster (`Plan.part`, `Cluster.part`), and simulated as that.
    """

    def __init__(
        self,
        info: WorkloadInfo,
        graph: OpGraph,
        costs: Costs,
        *,
        loop: Loop = PLAIN_LOOP,
        operations: Operations | None = None,
    ) -> None:
        """`operations`: of the model, where plans may place groups of ops."""
        self.info, self.graph, self.costs, self.loop, self.operations = info, graph, costs, loop, operations
        self._saved_bytes = np.array([op.saved_bytes_per_sample for op in graph.ops])
        self._speeds = link_speeds(costs.cluster.topology)
        self._buffers = lru_cache(maxsize=_KEPT_BUFFERS)(FusionBufferMaker(graph, costs).make)
        self._sites = lru_cache(maxsize=_KEPT_BUFFERS)(self._make_site)
        self._part = lru_cache(maxsize=_KEPT_PARTS)(self._make_part)
        self._like = LikeRanks(costs)
        self._memory_bytes = np.array(
            [np.inf if device.memory_bytes is None else device.memory_bytes for device in costs.cluster.devices]
        )

    def step_s(self, plan: Plan) -> float:
        """Predicted seconds of a step."""
        if plan.is_placed:
            return self.simulate(plan).step_s
        if plan.leaves_out:
            part, own, _ = self._on_used(plan)
            return part.step_s(own)
        _, layout, run = self._run(plan, self._like.rows(plan.batch.samples)[0])
        return layout.step_s(run)

    def outcome(self, plan: Plan) -> Outcome:
        """Step, memory and computing of a plan, without its timeline."""
        if plan.is_placed:
            simulated = self.simulate(plan)
            peak = self.peak_memory_bytes(plan, simulated)
            busy_s, num_tasks = self._busy_s(simulated), simulated.tasks.num_tasks
            return Outcome(step_s=simulated.step_s, peak_memory_bytes=peak, busy_s=busy_s, num_tasks=num_tasks)
        size = len(plan.batch.samples)
        if plan.leaves_out:
            part, own, used = self._on_used(plan)
            found = part.outcome(own)
            peak, busy_s = (spread(values, used, size) for values in (found.peak_memory_bytes, found.busy_s))
            return replace(found, peak_memory_bytes=peak, busy_s=busy_s)
        first, row_of_rank = self._like.rows(plan.batch.samples)
        tasks, layout, run = self._run(plan, first)
        last = slice((layout.num_steps - 1) * layout.per_step, None)
        device, seconds = tasks.device[last], tasks.seconds[last]
        busy = np.bincount(device[device >= 0], weights=seconds[device >= 0], minlength=len(first))
        return Outcome(
            step_s=layout.step_s(run),
            peak_memory_bytes=self._held_bytes(plan) + run.peak_bytes[row_of_rank],
            busy_s=busy.astype(np.float64)[row_of_rank],
            num_tasks=tasks.num_tasks,
        )

    def fitting_step_s(self, plan: Plan) -> float:
        """Predicted seconds of a step; infinite where a device cannot hold its part."""
        found = self.outcome(plan)
        return found.step_s if self.fits(plan, found) else math.inf

    def prediction(self, plan: Plan) -> Prediction:
        """What a record keeps beside the measurement."""
        found = self.outcome(plan)
        return Prediction(step_s=found.step_s, peak_memory_bytes=int(found.peak_memory_bytes.max()))

    def simulate(self, plan: Plan) -> Simulated:
        """Expand the plan and run it."""
        if plan.is_placed:
            check_no_stages(self.info.name, self.loop)
        if plan.pipeline is not None:
            return self._simulate_stages(plan, plan.pipeline, blocking=False)
        if plan.placement is not None:
            return self._simulate_step(self._placed(plan))
        if plan.leaves_out:
            part, own, used = self._on_used(plan)
            return part.simulate(own).among(used, len(plan.batch.samples))
        tasks, layout, run = self._run(plan)
        return Simulated(
            tasks=tasks, labels=layout.labels(), run=run, num_steps=layout.num_steps, step_s=layout.step_s(run)
        )

    def _simulate_stages(self, plan: Plan, pipeline: PipelinePlan, *, blocking: bool) -> Simulated:
        tasks, labels = expand_pipeline(self.graph, plan, self.costs, blocking=blocking)
        run = simulate(tasks, make_stage_site(self.costs, 0 if self.costs.serialized_links else connections(pipeline)))
        return Simulated(tasks=tasks, labels=labels, run=run, num_steps=1, step_s=run.makespan_s)

    def _placed(self, plan: Plan) -> PlacedStep:
        if self.operations is None:
            raise SpecError(f"the operations of {self.info.name!r} are not known: a plan with groups of ops needs them")
        return expand_placement(self.graph, self.operations, plan, self.costs)

    def _simulate_step(self, step: PlacedStep) -> Simulated:
        run = simulate(step.tasks, make_stage_site(self.costs, step.num_connections))
        return Simulated(tasks=step.tasks, labels=step.labels, run=run, num_steps=1, step_s=run.makespan_s)

    def step_range_s(self, plan: Plan) -> tuple[float, float] | None:
        """Least and most seconds of a step where it is not known whether stages compute while they send: our executor does,
        over a transport that runs stages. None: known.
        """
        if plan.pipeline is None or len(plan.pipeline.first_ops) == 1 or TRANSPORTS[plan.comm.transport].carries_shards:
            return None
        runs = [self._simulate_stages(plan, plan.pipeline, blocking=blocking).step_s for blocking in (False, True)]
        return min(runs), max(runs)

    def _on_used(self, plan: Plan) -> tuple[Simulator, Plan, tuple[int, ...]]:
        """The ranks that a plan uses, as a cluster of their own, and the plan on it."""
        used = plan.used_ranks
        return self._part(used), plan.part(used), used

    def _make_part(self, ranks: tuple[int, ...]) -> Simulator:
        return Simulator(self.info, self.graph, self.costs.part(ranks), loop=self.loop, operations=self.operations)

    def _run(self, plan: Plan, rows: Ints | None = None) -> tuple[Tasks, Layout, Run]:
        """Of a data-parallel plan that uses all ranks. `rows`: a rank of each kind, if these are enough."""
        buffers = self._buffers_of(plan)
        crosses_steps = plan.comm.overlaps_steps and self.loop.clip_norm is None
        size = len(plan.batch.samples)
        rows = None if rows is not None and len(rows) == size else rows
        layout = Layout(
            num_ranks=size if rows is None else len(rows),
            num_ops=len(self.graph.ops),
            num_buffers=len(buffers.wire_bytes),
            num_steps=_OVERLAPPED_STEPS if crosses_steps else 1,
            crosses_steps=crosses_steps,
            coded=set(plan.compression.codecs) != {"none"} or bool(plan.compression.factors),
            decodes_early=plan.comm.is_scheduled,
            accumulates=self._loop_of(plan).accumulate > 1,
        )
        costs = self._step_costs(plan, buffers, coded=layout.coded)
        tasks = expand(costs if rows is None else costs.of(rows), buffers, layout)
        return tasks, layout, simulate(tasks, self._site_of(plan.comm))

    def peak_memory_bytes(self, plan: Plan, simulated: Simulated) -> Floats:
        """Per rank: fixed memory, buffers of the plan, and peak activations."""
        peak: Floats = self._held_bytes(plan) + simulated.run.peak_bytes
        return peak

    def _held_bytes(self, plan: Plan) -> Floats:
        """Per rank, without activations."""
        constant, held = held_bytes(self.graph, self.costs)
        if plan.placement is not None:
            shares, summed = placed_shares(self.graph, plan.placement, len(plan.batch.samples))
            always = held * shares + summed
        elif plan.pipeline is not None:
            always = held * param_shares(self.graph, plan) + shared_bytes(self.graph, plan)
        else:
            always = held + self._buffer_bytes(plan)
        used = list(plan.used_ranks)
        return spread((constant + always)[used], used, len(plan.batch.samples))

    def fits(self, plan: Plan, outcome: Outcome | None = None) -> bool:
        """Whether the plan fits into the memory of every device."""
        return self.fits_in((outcome or self.outcome(plan)).peak_memory_bytes)

    def fits_in(self, held: Floats) -> bool:
        """Whether every device has this memory."""
        return bool((held <= self._memory_bytes).all())

    @property
    def is_tight(self) -> bool:
        """Whether some device could not hold the whole model with an even share of the batch."""
        samples = self.info.global_batch / len(self._memory_bytes) / self.loop.accumulate
        constant, scaling = held_bytes(self.graph, self.costs)
        held: Floats = constant + scaling + self.graph.saved_bytes_per_sample * samples
        return bool((held > self._memory_bytes).any())

    def forecast(self, plan: Plan) -> Forecast:
        """All figures of a plan: step, breakdown, memory, origins, cost, energy."""
        plan.validate(num_ranks=len(self.costs.cluster.devices), global_batch=self.info.global_batch)
        simulated = self.simulate(plan)
        devices = self.costs.cluster.devices
        busy_s = self._busy_s(simulated)
        peak = self.peak_memory_bytes(plan, simulated)
        step_s = simulated.step_s
        return Forecast(
            workload=self.info.name,
            cluster=self.costs.cluster.name,
            plan=plan,
            global_batch=self.info.global_batch,
            step_s=step_s,
            tree=None if self.costs.cluster.topology.is_one_switch else cluster_tree(self.costs.cluster),
            step_range_s=self.step_range_s(plan),
            ranks=tuple(
                RankForecast(
                    rank=rank,
                    device=device.name,
                    samples=plan.batch.samples[rank],
                    compute_s=float(busy_s[rank]),
                    peak_memory_bytes=float(peak[rank]),
                    peak_at_s=float(simulated.run.peak_at_s[rank]),
                    bubble=None if not plan.is_placed else max(1 - float(busy_s[rank]) / step_s, 0.0),
                    memory_bytes=device.memory_bytes,
                )
                for rank, device in enumerate(devices)
            ),
            num_tasks=simulated.tasks.num_tasks,
            breakdown=break_down(self.timeline(plan, simulated)),
            limit=self.limit() if plan.placement is None else placed_limit(self.costs, self.info.global_batch),
            origins=self.costs.origins,
            doubts=tuple(self._doubts(plan)),
            price_per_hour=_total([devices[rank].price_per_hour for rank in plan.used_ranks]),
            joules_per_step=self.joules_per_step(plan, step_s, busy_s),
        )

    def _doubts(self, plan: Plan) -> list[str]:
        """What is computed at once is compared with what was measured: a micro-batch, or a pass of an accumulating loop."""
        if plan.placement is not None:
            return self.costs.doubts([count / plan.placement.micro_batches for count in plan.batch.samples])
        if plan.pipeline is not None:
            micro = plan.pipeline.micro_samples(plan.batch.samples)
            degrees = {len(ranks) for groups in plan.pipeline.groups() for ranks in groups}
            return list(dict.fromkeys(d for degree in sorted(degrees) for d in self.costs.doubts(micro, degree)))
        loop = self._loop_of(plan)
        return self.costs.doubts([max(loop.passes(count), default=0) for count in plan.batch.samples])

    def _loop_of(self, plan: Plan) -> Loop:
        """The loop of a data-parallel plan, which may take each rank's samples in several passes."""
        if plan.batch.accumulate == 1:
            return self.loop
        return replace(self.loop, accumulate=self.loop.accumulate * plan.batch.accumulate)

    def joules_per_step(self, plan: Plan, step_s: float, busy_s: Floats) -> float | None:
        """Busy and idle power of the devices that a plan uses over the step; None where one does not state its power."""
        joules: list[float | None] = []
        for rank in plan.used_ranks:
            device, busy = self.costs.cluster.devices[rank], float(busy_s[rank])
            idle_joules = max(step_s - busy, 0.0) * (device.idle_watts or 0.0)
            joules.append(None if device.busy_watts is None else busy * device.busy_watts + idle_joules)
        return _total(joules)

    def limit(self) -> Limit:
        """A lower bound on the step time of every lossless data-parallel plan, whichever ranks it uses."""
        return step_limit(
            least_sample_s(self.costs, self.info.global_batch),
            self.costs.cluster,
            self.graph,
            global_batch=self.info.global_batch,
        )

    def timeline(self, plan: Plan, simulated: Simulated | None = None) -> Timeline:
        """The last simulated step as spans, as of a traced step."""
        simulated = simulated or self.simulate(plan)
        if plan.placement is not None:
            names = self._placed(plan).span_names()
        else:
            names = {} if plan.pipeline is None else span_names(plan.pipeline, plan.batch.samples, simulated)
        return Timeline.merge([Timeline(spans=tuple(spans(self.graph, simulated, self.wire_bytes(plan), names)))])

    def stage_table(self, plan: Plan) -> Timetable | None:
        """The predicted timetable of a plan with pipeline stages."""
        return None if plan.pipeline is None else stage_table(plan.pipeline, plan.batch.samples, self.simulate(plan))

    def wire_bytes(self, plan: Plan) -> list[float]:
        """Of each fusion buffer of a data-parallel plan."""
        return [] if plan.is_placed else [float(size) for size in self._buffers_of(plan).wire_bytes]

    def _buffers_of(self, plan: Plan) -> FusionBuffers:
        if plan.leaves_out:
            part, plan, _ = self._on_used(plan)
            return part._buffers_of(plan)  # noqa: SLF001 - of the same class
        return self._buffers(Sends.of(plan))

    def _step_costs(self, plan: Plan, buffers: FusionBuffers, *, coded: bool) -> StepCosts:
        samples = np.array(plan.batch.samples, np.float64)
        encode_s, decode_s = codec_s(self.graph, self.costs, plan, buffers, samples) if coded else (_NOTHING, _NOTHING)
        passes = step_passes(self.costs, self._loop_of(plan), plan.batch.samples)
        return StepCosts(
            data_s=(self.costs.data.at(samples) + self.costs.data.fixed_s * (passes.number - 1)) * (samples > 0),
            forward_s=passes.forward_s,
            backward_s=passes.backward_s,
            between_s=passes.between_s,
            encode_s=encode_s,
            decode_s=decode_s,
            update_s=self.costs.update.at(samples),
            samples=passes.largest,
            saved_bytes_per_sample=self._saved_bytes,
        )

    def _site_of(self, comm: CommPlan) -> Site:
        return self._sites(comm.transport, comm.credit_bytes if comm.is_scheduled else None)

    def _make_site(self, transport: str, credit_bytes: int | None) -> Site:
        slots = self.costs.transports.get(transport, NO_OVERHEAD).slots
        return make_site(
            len(self.costs.cluster.devices),
            self._speeds,  # type: ignore[arg-type]
            slots=(NO_LIMIT if self.costs.serialized_links else slots,),
            credit_bytes=(np.inf if credit_bytes is None else float(credit_bytes),),
            serialized=self.costs.serialized_links,
        )

    def _buffer_bytes(self, plan: Plan) -> float:
        """DDP's buckets; for lossy codecs the encoded bytes and the error feedback. Sufficient factors use no buffer."""
        if plan.comm.reducer == ReducerKind.DDP:
            return float(self.graph.param_bytes)
        if plan.is_lossless or plan.comm.reducer == ReducerKind.AVERAGED:
            return 0.0
        buffers = self._buffers_of(plan)
        lossy = (buffers.gradient_bytes > 0) & (buffers.codec != CODECS.index("none"))
        return float(buffers.wire_bytes[lossy].sum() + buffers.gradient_bytes[lossy].sum())

    def _busy_s(self, simulated: Simulated) -> Floats:
        last = simulated.labels.step == simulated.num_steps - 1
        on_device = (simulated.tasks.device >= 0) & last
        busy = np.bincount(
            simulated.tasks.device[on_device],
            weights=simulated.tasks.seconds[on_device],
            minlength=len(self.costs.cluster.devices),
        )
        return busy.astype(np.float64)


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
