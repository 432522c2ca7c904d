"""The plan of a training script: given, read from a file or torch DDP's default, and checked against the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.jobs.job import read_plan_file
from autotune.results.store.record import BestPlan
from autotune.space.rank_sets import name_of
from autotune.workloads.cluster import Cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.plan import TRANSPORTS, Plan, ReducerKind, default_plan
from autotune.workloads.split import bounds, even, proportional

_FORCE = "run `autotune sweep` for it, or pass force=True to use the plan as it is"


def choose_plan(
    given: Plan | str | Path | None, global_batch: int | None, num_ranks: int, *, transport: str = "gloo"
) -> tuple[Plan, BestPlan | None]:
    """The plan, torch DDP's defaults over `transport` where none is given, and the stored best plan if it was read from a file. A `global_batch` other than the plan's is split in the
    plan's proportions.
    """
    if given is None:
        if global_batch is None:
            raise SpecError(
                "parallelize() was given neither a plan nor a batch: pass a plan from `autotune best --export plan.json`, or "
                "global_batch=..., the samples of all ranks in one step"
            )
        return default_plan(even(global_batch, bounds(num_ranks, global_batch)), transport=transport), None
    kept = None if isinstance(given, Plan) else read_plan_file(str(given))
    plan = kept.plan if kept is not None else given
    assert isinstance(plan, Plan)
    if len(plan.batch.samples) != num_ranks:
        wanted = len(plan.batch.samples)
        raise SpecError(
            f"this plan is for {wanted} ranks, the job has {num_ranks}: start `mpirun -n {wanted} python script.py`, or "
            f"sweep with --ranks {num_ranks}"
        )
    _check_every_rank_trains(plan)
    if global_batch is not None and global_batch != plan.global_batch:
        plan = replace(plan, batch=replace(plan.batch, samples=_resplit(plan.batch.samples, global_batch)))
    return plan, kept


def _resplit(samples: tuple[int, ...], global_batch: int) -> tuple[int, ...]:
    """The same shares of another batch, at least one sample for each rank."""
    return proportional([float(count) for count in samples], global_batch, bounds(len(samples), global_batch))


def check_transport(plan: Plan, accelerators: Sequence[str]) -> None:
    """Refuse a plan whose transport does not take the tensors of all ranks. `accelerators`: each rank's type, or empty."""
    needed = TRANSPORTS[plan.comm.transport].device
    for rank, kind in enumerate(accelerators):
        if needed not in ("cpu", kind):
            raise SpecError(
                f"the plan's transport {plan.comm.transport!r} carries tensors of {needed!r} devices, but the model of rank "
                f"{rank} is on {kind or 'the CPU'}: use transport 'gloo', or move every rank's model to such a device"
            )


def check_script_plan(plan: Plan, num_ranks: int, *, allow_lossy: bool) -> None:
    """Refuse a plan that a script cannot run."""
    samples = plan.batch.samples
    if plan.is_placed:
        raise SpecError(
            "the plan has pipeline stages or groups of ops, but a training script holds the whole model: train it by `autotune train`, or "
            "give the script a plan without stages"
        )
    if plan.embedding is not None:
        raise SpecError(
            "the plan has embedding servers, but a training script holds its tables itself: train it by `autotune train`, or give "
            "the script a plan without embedding servers"
        )
    plan.validate(num_ranks=num_ranks, global_batch=sum(samples))
    plan.check_runnable()
    _check_every_rank_trains(plan)
    if not plan.is_lossless and not allow_lossy:
        what = "reducer 'averaged'" if plan.comm.reducer == ReducerKind.AVERAGED else f"codec {_lossy(plan)!r}"
        raise SpecError(
            f"the plan's {what} changes what is computed, and no quality guard watches a training script: pass "
            "allow_lossy=True to accept that, or sweep without --allow-lossy"
        )


def _check_every_rank_trains(plan: Plan) -> None:
    """A script's loop, its checkpoints and its metrics run on all ranks."""
    samples = plan.batch.samples
    if not plan.is_placed and min(samples) < 1:
        raise SpecError(
            f"the plan gives a rank no samples ({list(samples)}): a training script needs one at least on every rank; "
            f"start it on ranks {name_of(plan.used_ranks)} only, with the plan's samples of these, or use `autotune train`"
        )


def _lossy(plan: Plan) -> str:
    return next(codec for codec in plan.compression.codecs if codec != "none")


def check_made_for(kept: BestPlan, parameters: Mapping[str, str], cluster: Cluster) -> None:
    """Refuse a plan that was tuned for another model or cluster: it would run, but slowly. Only entries that the file has
    are compared.
    """
    if kept.parameters and kept.parameters != dict(parameters):
        name, there, here = _first_difference(kept.parameters, parameters)
        raise SpecError(
            f"the plan was made for workload {kept.workload!r}, whose parameter {name} is {there}, and here it is {here}: "
            f"this is another model; {_FORCE}"
        )
    if kept.cluster_fingerprint and kept.cluster_fingerprint != cluster.fingerprint():
        raise SpecError(
            f"the plan was made on cluster {kept.cluster!r} and the job runs on {cluster.name!r}, which differs "
            f"({_cluster_difference(kept, cluster)}): pass cluster=... if it is the same by another name; else {_FORCE}"
        )


def _first_difference(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, str, str]:
    for name in (*there, *here):
        if there.get(name) != here.get(name):
            return repr(name), there.get(name, "not there"), here.get(name, "not there")
    raise AssertionError("no difference")


def _cluster_difference(kept: BestPlan, cluster: Cluster) -> str:
    devices = ", ".join(dict.fromkeys(device.name for device in cluster.devices))
    return (
        f"here: {devices}"
        if kept.cluster == cluster.name
        else f"{kept.cluster_fingerprint} and {cluster.fingerprint()}"
    )
