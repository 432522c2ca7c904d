"""A problem of provisioning from a workload and a cluster: its kinds of devices are the types, its ops the layers.

Times are those that the simulator uses: a profile where there is one, else the speeds that the cluster file states. α and β of a kind come from its
times at k = 1, 2 and 4 units that share a batch, which do not fall as 1/k where something does not divide: launches, fixed traffic, latency. Where
profiles of several numbers of ranks are named, each k is read from the profile with that many ranks. Of connections that skip layers, only
what the last layer of a stage hands on is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.jobs.predict import described_model, find_profiles
from autotune.jobs.question import Question
from autotune.provision.problem import Floats, Layer, Problem, ResourceType
from autotune.provision.problem_file import MAX_LAYERS, Prices, check_runnable
from autotune.provision.scaling import fit_share
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.cost_tables import Costs
from autotune.workloads.cluster import Cluster, load_cluster
from autotune.workloads.errors import SpecError, unknown_name
from autotune.workloads.graph import Op, OpGraph

UNITS = (1, 2, 4)
"""Numbers of units at which α and β are fitted."""
_ACROSS = 2
"""An output is sent on in forward, and as many bytes of its gradient back in backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What the problem asks for."""

    examples: float
    min_throughput: float
    limits: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A workload, and its costs on a cluster by the number of units that share a batch."""

    graph: OpGraph
    batch: int
    costs: Mapping[int, Costs]

    def ops_s(self, units: int) -> Floats:
        """Seconds per example of every op on every rank, if so many units share the batch."""
        costs = self.costs[units]
        share = np.full(len(costs.cluster.devices), self.batch / units)
        forward, backward = costs.passes(share)
        seconds: Floats = (forward + backward) / self.batch
        return seconds

    def transfer_s(self, num_bytes: float, rank: int, units: int) -> float:
        """Seconds per example to send an output over the link of a rank's host, each unit its share."""
        link = _link(self.costs[units].cluster, rank)
        if link is None:
            return 0.0
        slower, latency = link
        return _ACROSS * (latency + num_bytes * self.batch / units / slower) / self.batch


def workload_problem(question: Question, wanted: Wanted, prices: Prices | None) -> Problem:
    """The problem of a workload on a cluster's kinds of devices."""
    measured = measure(question)
    costs = measured.costs[1]
    kinds = kinds_of(costs.cluster)
    for name in wanted.limits:
        if name not in kinds:
            raise unknown_name("kind of device in --limit:", name, kinds)
    kept = _ops_with_work(measured, list(kinds.values()))
    types = tuple(_type(name, measured, kept, wanted, prices) for name in kinds)
    problem = Problem(
        types=types,
        layers=tuple(_layer(measured, place, list(kinds.values())) for place in kept),
        examples=wanted.examples,
        min_throughput=wanted.min_throughput,
        source={"cluster": costs.cluster.name, "times": "; ".join(_origins(costs)), "workload": question.workload_name},
    )
    check_runnable(problem, f"{question.workload_name} on {costs.cluster.name}")
    return problem


def measure(question: Question) -> Measured:
    """Capture the workload, and look its costs up."""
    cluster = load_cluster(question.clusters[0])
    if cluster.any_ranks:
        cluster = cluster.for_ranks(question.num_ranks or 1)
    model = described_model(question)
    graph, profiles = model.graph, find_profiles(model, question, cluster)
    of_size = {len(one.ranks): one for one in profiles}
    several = len(of_size) > 1
    costs = {
        units: cost_model(graph, cluster, [of_size[units], *profiles] if several and units in of_size else profiles)
        for units in UNITS
    }
    return Measured(graph=graph, batch=model.workload.global_batch, costs=costs)


def kinds_of(cluster: Cluster) -> dict[str, int]:
    """The first rank of each kind of device."""
    first: dict[str, int] = {}
    for rank, device in enumerate(cluster.devices):
        first.setdefault(device.name, rank)
    return first


def _ops_with_work(measured: Measured, ranks: Sequence[int]) -> list[int]:
    """Ops that take time: modules that only contain others do not."""
    seconds = measured.ops_s(1)[ranks]
    kept = [place for place in range(len(measured.graph.ops)) if seconds[:, place].max() > 0]
    if not 1 <= len(kept) <= MAX_LAYERS:
        raise SpecError(f"the model has {len(kept)} ops that take time: provisioning takes 1 to {MAX_LAYERS:,}")
    return kept


def _layer(measured: Measured, place: int, ranks: Sequence[int]) -> Layer:
    op: Op = measured.graph.ops[place]
    before = measured.graph.ops[place - 1].output_bytes_per_sample if place else 0.0
    seconds = measured.ops_s(1)
    return Layer(
        name=op.name or op.kind,
        kind=op.kind,
        compute_s=tuple(float(seconds[rank, place]) for rank in ranks),
        transfer_s=tuple(measured.transfer_s(op.output_bytes_per_sample, rank, 1) for rank in ranks),
        weight_bytes=float(op.param_bytes),
        input_bytes=float(before),
    )


def _type(name: str, measured: Measured, kept: Sequence[int], wanted: Wanted, prices: Prices | None) -> ResourceType:
    rank = kinds_of(measured.costs[1].cluster)[name]
    device = measured.costs[1].cluster.devices[rank]
    price = prices(name) if prices is not None else None
    price = device.price_per_hour if price is None else price
    if price is None:
        raise SpecError(
            f"device {name!r} has no price: state price_per_hour in its [device.*] table, or name a price list with --prices"
        )
    compute = tuple((float(units), float(measured.ops_s(units)[rank, list(kept)].sum())) for units in UNITS)
    alpha, alpha_error = fit_share(compute, f"times of {name}")
    mean = sum(measured.graph.ops[place].output_bytes_per_sample for place in kept) / len(kept)
    sent = tuple((float(units), measured.transfer_s(mean, rank, units)) for units in UNITS)
    beta, beta_error = fit_share(sent, f"transfers of {name}") if sent[0][1] > 0 else (1.0, None)
    return ResourceType(
        name=name,
        price_per_hour=price,
        limit=wanted.limits.get(name),
        alpha=alpha,
        alpha_error=alpha_error,
        beta=beta,
        beta_error=beta_error,
    )


def _link(cluster: Cluster, rank: int) -> tuple[float, float] | None:
    """Bandwidth and latency of the link of a rank's host; None: not known, taken as free."""
    link = cluster.hosts[cluster.host_of_rank[rank]].link
    return None if link is None else (min(link.up_bytes_per_s, link.down_bytes_per_s), link.latency_s)


def _origins(costs: Costs) -> list[str]:
    found = [f"{one.what}: {one.source}" for one in costs.origins]
    free = [] if all(host.link is not None for host in costs.cluster.hosts) else ["links not known are taken as free"]
    return list(dict.fromkeys([*found, *free]))
