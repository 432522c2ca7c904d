"""Plans with pipeline stages worth a trial: how many stages, cut where, on which devices, in how many micro-batches, in which order.

For each number of stages and of micro-batches the cut comes from dynamic programming over ops and devices (`schedule.cut`), then
boundaries move while the simulator, which knows of links that transfers share, says that it pays; the best few cuts are kept.
Each is offered in the classic orders, and the most promising also in one that is searched for it. What a device cannot hold is
left out. The order that was found stands in the plan, so that all ranks run the same and nobody searches again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.placement.chain_costs import Cut, StageCosts, at_cuts, cut_blocks, stage_costs
from autotune.placement.chain_cut import cuts, neighbours
from autotune.schedule.search import search
from autotune.simulate.simulator import Simulator
from autotune.space.pipeline_points import CUTS, NO_STAGES, StagedPlans
from autotune.workloads.blocks import BACKWARD, FORWARD, INPUT, WEIGHT, Timetable
from autotune.workloads.errors import InfeasiblePlanError
from autotune.workloads.model_stages import StageCuts
from autotune.workloads.plan import BatchPlan, CommPlan, PipelinePlan, Plan
from autotune.workloads.stage_order import SEARCHED, Pass, as_text

CLASSIC = ("1f1b", "zero-bubble", "gpipe")
_MOST_STAGES = 8
_MOST_COUNTS = 4
"""Numbers of micro-batches that are tried for a number of stages."""
_MOST_MOVES = 24
_SEARCH_S = 3.0
_PROMISING = 1.25
"""A searched order may be worth having where the best classic one is no slower than this many times a plan without stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offer:
    """A plan and what is predicted of it."""

    plan: Plan
    cut: Cut
    """In places of `StageCuts.first_ops`."""
    step_s: float


def staged_plans(
    simulator: Simulator, places: StageCuts | None, than: Plan, *, search_s: float = _SEARCH_S
) -> StagedPlans:
    """All that are offered, in the order of stages, micro-batches, cuts; none where the model cannot be cut.

    `than`: a plan without stages, to be as good as.
    """
    if places is None:
        return NO_STAGES
    finder = _Finder(simulator, places)
    offers = [offer for size, count in finder.sizes() for offer in finder.offers(size, count)]
    best = min(offers, key=lambda offer: offer.step_s, default=None)
    if best is not None and search_s > 0 and best.step_s <= _PROMISING * _step_s(simulator, than):
        offers += finder.searched(best, search_s)
    return StagedPlans(plans=tuple(offer.plan for offer in offers))


def _step_s(simulator: Simulator, plan: Plan) -> float:
    return simulator.step_s(plan) if simulator.fits(plan) else math.inf


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

    def offers(self, size: int, count: int) -> Iterator[_Offer]:
        """The best cuts, each in all classic orders."""
        for cut in self._climbed(cuts(self._costs(count), count, size), count):
            for schedule in CLASSIC:
                offer = self._offer(cut, count, schedule)
                if offer is not None:
                    yield offer

    def searched(self, best: _Offer, search_s: float) -> Iterator[_Offer]:
        """The same cut in an order of its own, if there is a better one."""
        pipeline = best.plan.pipeline
        assert pipeline is not None
        count = pipeline.micro_batches
        try:
            answer = search(cut_blocks(self._costs(count), best.cut), count, time_s=search_s)
        except InfeasiblePlanError:
            return
        order = tuple(as_text(passes) for passes in passes_of(answer.table, best.cut.devices))
        found = self._offer(best.cut, count, SEARCHED, order)
        if found is not None and found.step_s < best.step_s:
            yield found

    def _climbed(self, firsts: Sequence[Cut], count: int) -> list[Cut]:
        """The best cuts near the best of some, by what 1F1B would take."""
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
        """A boundary moved, or two stages that follow each other on each other's devices."""
        yield from neighbours(cut, len(self._cuts.first_ops))
        for stage in range(len(cut.devices) - 1):
            devices = list(cut.devices)
            devices[stage], devices[stage + 1] = devices[stage + 1], devices[stage]
            yield replace(cut, devices=tuple(devices))

    def _judge(self, cut: Cut, count: int) -> float:
        offer = self._offer(cut, count, "1f1b")
        return math.inf if offer is None else offer.step_s

    def _offer(self, cut: Cut, count: int, schedule: str, order: tuple[str, ...] = ()) -> _Offer | None:
        """None where a device could not hold it."""
        plan = self._plan(cut, count, schedule, order)
        simulated = self._simulator.simulate(plan)
        if not self._simulator.fits(plan, simulated):
            return None
        return _Offer(plan=plan, cut=cut, step_s=simulated.step_s)

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
    """Per stage: what a timetable of a cut's blocks (f0 …, b0 …, or b0.input and b0.weight) has its device do."""
    kinds = {"f": FORWARD, "b": BACKWARD}

    def kind(block: str) -> str:
        _, _, part = block.partition(".")
        return part if part in (INPUT, WEIGHT) else kinds[block[0]]

    return [[(kind(slot.block), slot.microbatch) for slot in table.order[device]] for device in devices]
