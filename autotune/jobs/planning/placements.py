"""Plans with groups of ops for a prediction, where they can run and can help; and what each group is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.jobs.planning.judge import make_objective
from autotune.jobs.predict import Predictor
from autotune.jobs.question import Aim, Question
from autotune.placement.groups.device_sets import device_sets
from autotune.placement.groups.portfolio import Search, find_placement
from autotune.results.store.forecast import PlacedGroup
from autotune.simulate.limit import placed_limit
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan
from autotune.workloads.plan.op_groups import OpGroup
from autotune.workloads.workload import check_no_stages

_NEAR_LIMIT = 1.02
"""A plan that takes at most this many times the limit of all placements leaves nothing to gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """Plans with groups of ops."""

    predictor: Predictor
    """Of these plans too, where some were searched."""
    judged: tuple[tuple[float, Plan], ...] = ()
    num_simulations: int = 0
    note: str = ""
    """Why none were searched."""


def searched_placements(question: Question, predictor: Predictor, aim: Aim, best: float) -> Searched:
    """The best placement; `best`: the objective of the best other plan."""
    if aim.simulations < 1:
        raise SpecError(
            f"--simulations {aim.simulations}: it must be at least 1; --placement off searches no placements"
        )
    if aim.placement == "off" or "gloo" not in question.transports or len(predictor.cluster.devices) == 1:
        return Searched(predictor=predictor)
    simulator = predictor.simulator
    least_s = placed_limit(simulator.costs, predictor.total).step_s
    if aim.objective == "time" and best <= _NEAR_LIMIT * least_s:
        return Searched(predictor=predictor)
    try:
        check_no_stages(simulator.info.name, simulator.loop)
        placing = predictor.placing()
    except SpecError as refused:
        return Searched(predictor=predictor, note=f"plans with groups of ops were not searched: {refused}")
    asked = Search(
        method=aim.placement,
        simulations=aim.simulations,
        seed=question.seed,
        objective=make_objective(placing.simulator, aim),
    )
    found = find_placement(placing.simulator, asked)
    return Searched(
        predictor=placing,
        judged=((found.value if found.over == 0 else float("inf"), found.plan),),
        num_simulations=found.num_simulations,
    )


def explained(predictor: Predictor, plan: Plan) -> tuple[PlacedGroup, ...]:
    """Each group of the plan, the one with the most arithmetic first."""
    placement = plan.placement
    if placement is None:
        return ()
    simulator = predictor.simulator
    graph = simulator.graph
    names = [op.name for op in graph.ops]
    work = [op.flops_per_sample * (1 + op.backward_factor) for op in graph.ops]
    (everywhere,) = device_sets(simulator.costs, predictor.total, placement.micro_batches, 1)
    found = []
    for number, group in enumerate(placement.groups):
        groups = list(placement.groups)
        groups[number] = OpGroup(ops=group.ops, ranks=everywhere.ranks, samples=everywhere.samples)
        moved = replace(placement, groups=tuple(groups))
        batch = replace(plan.batch, samples=moved.most_samples(len(plan.batch.samples)))
        devices = Counter(predictor.cluster.devices[rank].name for rank in group.ranks)
        found.append(
            PlacedGroup(
                modules=modules_of([names[op] for op in group.ops], names),
                ranks=group.ranks,
                samples=group.samples,
                devices=", ".join(f"{count} x {name}" for name, count in devices.items()),
                compute_share=sum(work[op] for op in group.ops) / (sum(work) or 1.0),
                param_bytes=float(sum(graph.ops[op].param_bytes for op in group.ops)),
                step_elsewhere_s=simulator.step_s(replace(plan, batch=batch, placement=moved)),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.compute_share))


def modules_of(chosen: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The largest modules that contain only ops of these names, in order."""
    missing = set(names) - set(chosen)
    found: dict[str, None] = {}
    for name in chosen:
        parts = name.split(".")
        prefixes = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
        whole = (one for one in prefixes if not any(other == one or other.startswith(f"{one}.") for other in missing))
        found[next(whole, name)] = None
    return tuple(found)
