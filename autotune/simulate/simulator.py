"""Predicts the step time of a plan on a cluster: the plan becomes tasks, the tasks run in the event engine.

A search calls `Simulator.step_s` thousands of times; `forecast` adds the figures of a report; `timeline` makes the same
`Timeline` as a traced run. The simulator reads a plan as the runtime does: the same buckets, the same loads on links, the same
order, and the loop that the workload states: gradient accumulation, and clipping, which needs all gradients and
therefore ends every step with a barrier. The time of clipping itself is not counted, nor that of the optimizer where no
profile has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from autotune.profilers.breakdown import break_down
from autotune.profilers.timeline import Timeline
from autotune.results.store.forecast import Forecast, RankForecast
from autotune.results.store.record import Limit, Prediction, WorkloadInfo
from autotune.results.text.cluster_text import cluster_tree
from autotune.simulate.cost_tables import NO_OVERHEAD, Costs, Lines, held_bytes
from autotune.simulate.data_parallel import FusionBuffers, StepCosts, expand
from autotune.simulate.engine import Run, simulate
from autotune.simulate.layout import Layout
from autotune.simulate.limit import step_limit
from autotune.simulate.messages import FusionBufferMaker, Sends, link_speeds
from autotune.simulate.passes import step_passes
from autotune.simulate.pipeline import connections, expand_pipeline, param_shares, shared_bytes
from autotune.simulate.spans import Simulated, spans
from autotune.simulate.stage_table import span_names, stage_table
from autotune.simulate.task_graph import Floats, Site, Tasks
from autotune.simulate.tasks import NO_LIMIT, make_site
from autotune.workloads.blocks import Timetable
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import CODECS, TRANSPORTS, CommPlan, PipelinePlan, Plan, ReducerKind
from autotune.workloads.workload import PLAIN_LOOP, Loop, check_no_stages

_OVERLAPPED_STEPS = 4
"""Steps until steady state, with cross-step overlap."""
_KEPT_BUFFERS = 256
_NOTHING = np.zeros((0, 0))


class Simulator:
    """Predicts plans for one workload on one cluster."""

    def __init__(self, info: WorkloadInfo, graph: OpGraph, costs: Costs, *, loop: Loop = PLAIN_LOOP) -> None:
        self.info, self.graph, self.costs, self.loop = info, graph, costs, loop
        self._saved_bytes = np.array([op.saved_bytes_per_sample for op in graph.ops])
        self._speeds = link_speeds(costs.cluster.topology)
        self._buffers = lru_cache(maxsize=_KEPT_BUFFERS)(FusionBufferMaker(graph, costs).make)
        self._sites = lru_cache(maxsize=_KEPT_BUFFERS)(self._make_site)
        self._stage_site = lru_cache(maxsize=_KEPT_BUFFERS)(self._make_stage_site)

    def step_s(self, plan: Plan) -> float:
        """Predicted seconds of a step."""
        if plan.pipeline is not None:
            return self.simulate(plan).step_s
        _, layout, run = self._run(plan)
        return layout.step_s(run)

    def prediction(self, plan: Plan) -> Prediction:
        """What a record keeps beside the measurement."""
        simulated = self.simulate(plan)
        peak = self.peak_memory_bytes(plan, simulated)
        return Prediction(step_s=simulated.step_s, peak_memory_bytes=int(peak.max()))

    def simulate(self, plan: Plan) -> Simulated:
        """Expand the plan and run it."""
        if plan.pipeline is not None:
            check_no_stages(self.info.name, self.loop)
            return self._simulate_stages(plan, plan.pipeline, blocking=False)
        tasks, layout, run = self._run(plan)
        return Simulated(
            tasks=tasks, labels=layout.labels(), run=run, num_steps=layout.num_steps, step_s=layout.step_s(run)
        )

    def _simulate_stages(self, plan: Plan, pipeline: PipelinePlan, *, blocking: bool) -> Simulated:
        tasks, labels = expand_pipeline(self.graph, plan, self.costs, blocking=blocking)
        run = simulate(tasks, self._stage_site(0 if self.costs.serialized_links else connections(pipeline)))
        return Simulated(tasks=tasks, labels=labels, run=run, num_steps=1, step_s=run.makespan_s)

    def step_range_s(self, plan: Plan) -> tuple[float, float] | None:
        """Least and most seconds of a step where it is not known whether stages compute while they send: our executor does,
        over a transport that runs stages. None: known.
        """
        if plan.pipeline is None or len(plan.pipeline.first_ops) == 1 or TRANSPORTS[plan.comm.transport].carries_shards:
            return None
        runs = [self._simulate_stages(plan, plan.pipeline, blocking=blocking).step_s for blocking in (False, True)]
        return min(runs), max(runs)

    def _run(self, plan: Plan) -> tuple[Tasks, Layout, Run]:
        """Of a data-parallel plan."""
        buffers = self._buffers_of(plan)
        crosses_steps = plan.comm.overlaps_steps and self.loop.clip_norm is None
        layout = Layout(
            num_ranks=len(plan.batch.samples),
            num_ops=len(self.graph.ops),
            num_buffers=len(buffers.wire_bytes),
            num_steps=_OVERLAPPED_STEPS if crosses_steps else 1,
            crosses_steps=crosses_steps,
            coded=set(plan.compression.codecs) != {"none"} or bool(plan.compression.factors),
            accumulates=self._loop_of(plan).accumulate > 1,
        )
        tasks = expand(self._step_costs(plan, buffers, coded=layout.coded), buffers, layout)
        return tasks, layout, simulate(tasks, self._site_of(plan.comm))

    def peak_memory_bytes(self, plan: Plan, simulated: Simulated) -> Floats:
        """Per rank: fixed memory, buffers of the plan, and peak activations."""
        constant, held = held_bytes(self.graph, self.costs)
        if plan.pipeline is not None:
            always = held * param_shares(self.graph, plan) + shared_bytes(self.graph, plan)
        else:
            always = held + self._buffer_bytes(plan)
        peak: Floats = constant + always + simulated.run.peak_bytes
        return peak

    def fits(self, plan: Plan, simulated: Simulated | None = None) -> bool:
        """Whether the plan fits into the memory of every device."""
        peak = self.peak_memory_bytes(plan, simulated or self.simulate(plan))
        limits = [device.memory_bytes for device in self.costs.cluster.devices]
        return all(limit is None or held <= limit for limit, held in zip(limits, peak.tolist(), strict=True))

    @property
    def is_tight(self) -> bool:
        """Whether some device could not hold the whole model with an even share of the batch."""
        limits = [device.memory_bytes for device in self.costs.cluster.devices]
        samples = self.info.global_batch / len(limits) / self.loop.accumulate
        constant, scaling = held_bytes(self.graph, self.costs)
        held: Floats = constant + scaling + self.graph.saved_bytes_per_sample * samples
        return any(limit is not None and taken > limit for limit, taken in zip(limits, held.tolist(), strict=True))

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
                    bubble=None if plan.pipeline is None else max(1 - float(busy_s[rank]) / step_s, 0.0),
                    memory_bytes=device.memory_bytes,
                )
                for rank, device in enumerate(devices)
            ),
            num_tasks=simulated.tasks.num_tasks,
            breakdown=break_down(self.timeline(plan, simulated)),
            limit=self.limit(),
            origins=self.costs.origins,
            doubts=tuple(self._doubts(plan)),
            price_per_hour=_total([device.price_per_hour for device in devices]),
            joules_per_step=self.joules_per_step(simulated),
        )

    def _doubts(self, plan: Plan) -> list[str]:
        """What is computed at once is compared with what was measured: a micro-batch, or a pass of an accumulating loop."""
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

    def joules_per_step(self, simulated: Simulated) -> float | None:
        """Busy and idle power over the step; None where a device does not state its power."""
        step_s, busy_s = simulated.step_s, self._busy_s(simulated).tolist()
        return _total(
            [
                busy * device.busy_watts + max(step_s - busy, 0.0) * (device.idle_watts or 0.0)
                if device.busy_watts is not None
                else None
                for device, busy in zip(self.costs.cluster.devices, busy_s, strict=True)
            ]
        )

    def limit(self) -> Limit:
        """A lower bound on the step time of every lossless plan."""
        many = np.full(len(self.costs.cluster.devices), 1e6)
        seconds = sum(part.sum(axis=1) for part in self.costs.passes(many))
        return step_limit(
            [float(value) for value in seconds / 1e6],
            self.costs.cluster,
            self.graph,
            global_batch=self.info.global_batch,
        )

    def timeline(self, plan: Plan, simulated: Simulated | None = None) -> Timeline:
        """The last simulated step as spans, as of a traced step."""
        simulated = simulated or self.simulate(plan)
        names = {} if plan.pipeline is None else span_names(plan.pipeline, plan.batch.samples, simulated)
        return Timeline.merge([Timeline(spans=tuple(spans(self.graph, simulated, self.wire_bytes(plan), names)))])

    def stage_table(self, plan: Plan) -> Timetable | None:
        """The predicted timetable of a plan with pipeline stages."""
        return None if plan.pipeline is None else stage_table(plan.pipeline, plan.batch.samples, self.simulate(plan))

    def wire_bytes(self, plan: Plan) -> list[float]:
        """Of each fusion buffer of a data-parallel plan."""
        return [] if plan.pipeline is not None else [float(size) for size in self._buffers_of(plan).wire_bytes]

    def _buffers_of(self, plan: Plan) -> FusionBuffers:
        return self._buffers(Sends.of(plan))

    def _step_costs(self, plan: Plan, buffers: FusionBuffers, *, coded: bool) -> StepCosts:
        samples = np.array(plan.batch.samples, np.float64)
        encode_s, decode_s = self._codec_s(plan, buffers, samples) if coded else (_NOTHING, _NOTHING)
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

    def _codec_s(self, plan: Plan, buffers: FusionBuffers, samples: Floats) -> tuple[Floats, Floats]:
        """Seconds to encode and decode each fusion buffer on each rank."""
        encode_s, decode_s = (_side_s(lines, plan, buffers) for lines in (self.costs.encode, self.costs.decode))
        return encode_s, decode_s + self._rebuild_s(buffers, samples) if plan.compression.factors else decode_s

    def _rebuild_s(self, buffers: FusionBuffers, samples: Floats) -> Floats:
        """Seconds of the product of sufficient factors over the other ranks' rows: the layer's forward arithmetic for their
        samples. The backward pass already includes the rank's own rows.
        """
        made = buffers.rebuilt_op >= 0
        per_sample: Floats = self.costs.forward.one_more_s[:, np.where(made, buffers.rebuilt_op, 0)] * made
        others = samples.sum() - samples
        taken: Floats = per_sample * others[:, None]
        return taken

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

    def _make_stage_site(self, num_connections: int) -> Site:
        """Sums are limited by links only; over real links, the messages of a connection follow each other."""
        return make_site(
            len(self.costs.cluster.devices),
            self._speeds,  # type: ignore[arg-type]
            slots=(NO_LIMIT, *[1] * num_connections),
            credit_bytes=(np.inf,) * (1 + num_connections),
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


def _side_s(lines: Mapping[str, Lines], plan: Plan, buffers: FusionBuffers) -> Floats:
    """Seconds that codecs take per rank and fusion buffer, to encode or to decode."""
    seconds = np.zeros((len(plan.batch.samples), len(buffers.wire_bytes)))
    for codec in lines.keys() & set(plan.compression.codecs):
        sent = (buffers.gradient_bytes > 0) & (buffers.codec == CODECS.index(codec))
        seconds += lines[codec].table(buffers.gradient_bytes) * sent
    return seconds


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
