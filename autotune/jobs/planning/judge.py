"""What `autotune plan` minimises: seconds, money or energy of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.jobs.question import Aim
from autotune.simulate.simulator import Outcome, Simulator
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import Plan


def make_judge(simulator: Simulator, aim: Aim) -> Callable[[Plan], float]:
    """The objective's value of a plan; infinite where it does not fit or is too slow."""
    objective = make_objective(simulator, aim)

    def judge(plan: Plan) -> float:
        found = simulator.outcome(plan)
        return objective(plan, found) if simulator.fits(plan, found) else float("inf")

    return judge


def make_objective(simulator: Simulator, aim: Aim) -> Callable[[Plan, Outcome], float]:
    """The objective's value of a simulated plan, whether it fits or not; infinite where it is too slow."""
    devices = simulator.costs.cluster.devices
    _check_stated(
        aim.objective, [device.price_per_hour for device in devices], [device.busy_watts for device in devices]
    )

    def objective(plan: Plan, found: Outcome) -> float:
        step_s = found.step_s
        if simulator.info.global_batch / step_s < aim.min_throughput:
            return float("inf")
        if aim.objective == "energy":
            return simulator.joules_per_step(plan, step_s, found.busy_s) or 0.0
        if aim.objective == "cost":
            return step_s * sum(devices[rank].price_per_hour or 0.0 for rank in plan.used_ranks)
        return step_s

    return objective


def least_value(simulator: Simulator, aim: Aim) -> Callable[[tuple[int, ...], float], float]:
    """The least value of the objective for a plan that uses some ranks for so many seconds a step, at least."""
    devices = simulator.costs.cluster.devices

    def value(ranks: tuple[int, ...], step_s: float) -> float:
        if aim.objective == "cost":
            return step_s * sum(devices[rank].price_per_hour or 0.0 for rank in ranks)
        return step_s if aim.objective == "time" else 0.0

    return value


def _check_stated(objective: str, prices: Sequence[float | None], watts: Sequence[float | None]) -> None:
    stated = {"cost": prices, "energy": watts}.get(objective, [])
    if any(value is None for value in stated):
        key = "price_per_hour" if objective == "cost" else "busy_power"
        raise SpecError(f"--objective {objective} needs {key} of every [device.*] in the cluster file: state it")
