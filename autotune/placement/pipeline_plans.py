"""Candidate plans with pipeline stages: number of stages, cut, replicas and their shares, number of micro-batches, order.

Two searches. `stage_search` covers the whole space: replicas of unlike devices, tensor-parallel groups, all divisors of the batch
as micro-batches. On few devices, stages of one device each are besides cut for every number of stages and of micro-batches
by dynamic programming over ops and devices (`chain_cut`), and boundaries move while the simulator, which models shared
links, predicts an improvement. What is kept is a candidate in the classic orders, and the best chain of single devices
also in a searched order. Plans that exceed a device's memory are left out. The plan contains the order, so all ranks run
the same one and none repeats the search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.placement.chain_costs import Cut, StageCosts, at_cuts, cut_blocks, stage_costs
from autotune.placement.chain_cut import cuts, neighbours
from autotune.placement.stage_search import Found, StageSearch
from autotune.schedule.search import search
from autotune.simulate.simulator import Simulator
from autotune.space.pipeline_points import CUTS, NO_STAGES, StagedPlans, cut_of
from autotune.workloads.blocks import Timetable
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.model_stages import StageCuts
from autotune.workloads.pass_names import parse_pass
from autotune.workloads.plan import BatchPlan, CommPlan, PipelinePlan, Plan
from autotune.workloads.stage_order import SEARCHED, Pass, as_text

CLASSIC = ("1f1b", "zero-bubble", "gpipe")
_MOST_STAGES = 8
_MOST_COUNTS = 4
"""The most numbers of micro-batches that are tried per number of stages."""
_MOST_MOVES = 24
_SEARCH_S = 3.0
_MOST_CHAIN_RANKS = 8
"""With more devices, stages are mostly of several."""
_MOST_SHAPES = 24
_MOST_TASKS = 400_000
"""Of all candidates of the search together: long steps leave room for few."""
_PROMISING = 1.25
"""An order is searched where the best classic one takes at most this many times the step of a plan without stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """A plan and its predicted step."""

    plan: Plan
    cut: Cut
    """Counted in indices of `StageCuts.first_ops`."""
    step_s: float


def staged_plans(
    simulator: Simulator, places: StageCuts | None, than: Plan, *, search_s: float = _SEARCH_S, runs_only: bool = True
) -> StagedPlans:
    """All candidates, ordered by stages, micro-batches, cuts; none where the model cannot be cut.

    `than`: a plan without stages, to compare with. `runs_only`: none that is predicted but not run by any job yet.
    """
    if places is None:
        return NO_STAGES
    candidates = []
    if len(simulator.costs.cluster.devices) <= _MOST_CHAIN_RANKS:
        finder = _Finder(simulator, places)
        candidates = [candidate for size, count in finder.sizes() for candidate in finder.candidates(size, count)]
        best = min(candidates, key=lambda candidate: candidate.step_s, default=None)
        if best is not None and search_s > 0 and best.step_s <= _PROMISING * simulator.fitting_step_s(than):
            candidates += finder.searched(best, search_s)
    found = StageSearch(simulator, places, runs_only=runs_only).run()
    steps_s = {one.plan: one.step_s for one in candidates} | _in_orders(simulator, found, runs_only=runs_only)
    return StagedPlans(plans=tuple(_best_cuts(steps_s)))


def _best_cuts(steps_s: Mapping[Plan, float]) -> list[Plan]:
    """All orders of the best few cuts for each number of stages and of micro-batches, the best first."""
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
    by_cut: dict[tuple[Any, ...], list[Plan]] = {}
    for plan in sorted(steps_s, key=steps_s.__getitem__):
        assert plan.pipeline is not None
        several = found.setdefault((len(plan.pipeline.first_ops), plan.pipeline.micro_batches), [])
        key = cut_of(plan)
        if key not in several and len(several) < len(CUTS):
            several.append(key)
        if key in several:
            by_cut.setdefault(key, []).append(plan)
    return [plan for size in sorted(found) for key in found[size] for plan in by_cut[key]]


def _in_orders(simulator: Simulator, found: Sequence[Found], *, runs_only: bool) -> dict[Plan, float]:
    """Seconds of what the search judged best and fits, in the classic orders."""
    steps_s: dict[Plan, float] = {}
    tasks = 0
    for one in found:
        # One stage with replicas is data parallelism, which overlaps its sums and has splits and codecs besides.
        if one.value[0] > 0 or (runs_only and len(one.shape.stages) == 1):
            continue
        if len(steps_s) >= len(CLASSIC) * _MOST_SHAPES or (steps_s and tasks > _MOST_TASKS):
            break
        for schedule in CLASSIC if tasks < _MOST_TASKS else (one.shape.schedule,):
            plan = _in_order(one.plan, schedule)
            simulated = simulator.simulate(plan)
            tasks += simulated.tasks.num_tasks
            if simulator.fits_in(simulator.peak_memory_bytes(plan, simulated)):
                steps_s[plan] = simulated.step_s
    return steps_s


def _in_order(plan: Plan, schedule: str) -> Plan:
    assert plan.pipeline is not None
    return replace(plan, pipeline=replace(plan.pipeline, schedule=schedule))


class _Finder:
    def __init__(self, simulator: Simulator, places: StageCuts) -> None:
        self._simulator, self._cuts = simulator, places
        self._total = simulator.info.global_batch
        self._devices = simulator.costs.cluster.devices
        self._known: dict[int, StageCosts] = {}

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Numbers of stages and of micro-batches."""
        most = min(len(self._devices), len(self._cuts.first_ops), _MOST_STAGES)
        for size in range(2, most + 1):
            yield from ((size, count) for count in self._counts(size))

    def _counts(self, size: int) -> list[int]:
        """Micro-batches must be equal: divisors of the batch, from as many as stages up."""
        least = max(self._cuts.min_samples, 1)
        found = [n for n in range(size, self._total // least + 1) if self._total % n == 0]
        return found[:_MOST_COUNTS]

    def candidates(self, size: int, count: int) -> Iterator[_Candidate]:
        """The best cuts, each in all classic orders."""
        for cut in self._climbed(cuts(self._costs(count), count, size), count):
            for schedule in CLASSIC:
                candidate = self._candidate(cut, count, schedule)
                if candidate is not None:
                    yield candidate

    def searched(self, best: _Candidate, search_s: float) -> Iterator[_Candidate]:
        """The same cut in a searched order, if that is faster."""
        pipeline = best.plan.pipeline
        assert pipeline is not None
        count = pipeline.micro_batches
        try:
            answer = search(cut_blocks(self._costs(count), best.cut), count, time_s=search_s)
        except InfeasiblePlanError:
            return
        order = tuple(as_text(passes) for passes in passes_of(answer.table, best.cut.devices))
        found = self._candidate(best.cut, count, SEARCHED, order)
        if found is not None and found.step_s < best.step_s:
            yield found

    def _climbed(self, firsts: Sequence[Cut], count: int) -> list[Cut]:
        """The best cuts after a local search, by the predicted step of 1F1B."""
        if not firsts:
            return []
        judged = {cut: self._judge(cut, count) for cut in firsts}
        best, moves = min(judged, key=judged.__getitem__), 0
        while moves < _MOST_MOVES:
            near = [cut for cut in self._near(best) if cut not in judged][: _MOST_MOVES - moves]
            moves += len(near)
            judged |= {cut: self._judge(cut, count) for cut in near}
            better = min(judged, key=judged.__getitem__)
            if better == best or not near:
                break
            best = better
        ordered = sorted(judged, key=judged.__getitem__)
        return [cut for cut in ordered if judged[cut] < math.inf][: len(CUTS)]

    def _near(self, cut: Cut) -> Iterator[Cut]:
        """Cuts with one boundary moved, or with the devices of two adjacent stages exchanged."""
        yield from neighbours(cut, len(self._cuts.first_ops))
        for stage in range(len(cut.devices) - 1):
            devices = list(cut.devices)
            devices[stage], devices[stage + 1] = devices[stage + 1], devices[stage]
            yield replace(cut, devices=tuple(devices))

    def _judge(self, cut: Cut, count: int) -> float:
        candidate = self._candidate(cut, count, "1f1b")
        return math.inf if candidate is None else candidate.step_s

    def _candidate(self, cut: Cut, count: int, schedule: str, order: tuple[str, ...] = ()) -> _Candidate | None:
        """None where the plan exceeds a device's memory."""
        plan = self._plan(cut, count, schedule, order)
        outcome = self._simulator.outcome(plan)
        if not self._simulator.fits(plan, outcome):
            return None
        return _Candidate(plan=plan, cut=cut, step_s=outcome.step_s)

    def _plan(self, cut: Cut, count: int, schedule: str, order: tuple[str, ...]) -> Plan:
        samples = [0] * len(self._devices)
        for device in cut.devices:
            samples[device] = self._total
        pipeline = PipelinePlan(
            first_ops=tuple(self._cuts.first_ops[place] for place in cut.first_ops),
            stage_ranks=tuple((device,) for device in cut.devices),
            micro_batches=count,
            schedule=schedule,
            order=order,
        )
        return Plan(batch=BatchPlan(samples=tuple(samples)), comm=CommPlan(transport="gloo"), pipeline=pipeline)

    def _costs(self, count: int) -> StageCosts:
        if count not in self._known:
            whole = stage_costs(self._simulator.graph, self._simulator.costs, self._total / count)
            self._known[count] = at_cuts(whole, self._cuts.first_ops)
        return self._known[count]


def passes_of(table: Timetable, devices: Sequence[int]) -> list[list[Pass]]:
    """Per stage: the passes of its device, in order, of a timetable of a cut's blocks."""
    return [[(_kind(slot.block), slot.microbatch) for slot in table.order[device]] for device in devices]


def _kind(block: str) -> str:
    found = parse_pass(block)
    assert found is not None, "a cut has no other blocks"
    return found.kind
