"""Data-parallel steps of a model of which only step times are known: its compute time, its overlap, and the links of its hosts.

The model is a chain of equal parts, each with an equal share of the gradients in a bucket of its own. Computing is a line over
samples, of which the `overlap` share is backward: gradients are summed behind it. Hosts are alike: each
GPU has a link to its host, and all share one NIC. Two losses are not in the topology and are therefore parameters of the link that a placement gets: a NIC that k GPUs
use gives 1 / (1 + nic_loss·(k-1)) of its bandwidth (a ring's hops within the host and over the NIC share buses and CPUs), and
two hosts that exchange in both directions lose `pair_loss`. Computing slows down by `slowdown` for each further GPU of a host
(data loading, memory bandwidth). From these follow a graph, a profile and a cluster, which the simulator predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.results.imports.imported import HOST, LABEL
from autotune.results.store.fits import WorkFit
from autotune.results.store.profile import OpProfile, Profile, RankProfile
from autotune.results.store.record import WorkloadInfo
from autotune.simulate.cost_sources import cost_model
from autotune.simulate.simulator import Simulator
from autotune.workloads.cluster import Cluster, Device, Host
from autotune.workloads.graph import OpGraph
from autotune.workloads.graphs.graph_file import GraphFile, GraphOp, op_graph
from autotune.workloads.plan import default_plan
from autotune.workloads.topology import Fabric, Link

NUM_PARTS = 20
NOMINAL_BYTES = NUM_PARTS * 25 * 2**20
"""Of the gradients, where they are not known: as many of DDP's buckets as parts. Bandwidths are then relative to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepModel:
    """Everything that predicts a step of a placement."""

    name: str
    device: str
    compute: WorkFit
    """Forward and backward of a GPU that has its host to itself."""
    overlap: float
    nic_bytes_per_s: float
    """Of a host that uses one GPU."""
    fabric_bytes_per_s: float
    """Of the link of each GPU to its host."""
    slowdown: float = 0.0
    nic_loss: float = 0.0
    pair_loss: float = 0.0
    param_bytes: float = NOMINAL_BYTES

    def device_name(self, per_host: int) -> str:
        """A GPU among so many of its host that are used."""
        return self.device if per_host == 1 else f"{self.device}-{per_host}-per-host"

    def seconds(self, per_host: int) -> WorkFit:
        """Computing of such a GPU."""
        return _times(self.compute, 1 + self.slowdown * (per_host - 1))


def graph_of(model: StepModel, global_batch: int) -> GraphFile:
    """The chain of parts."""
    parts = tuple(
        GraphOp(name=f"part{index}", kind="part", param_bytes=model.param_bytes / NUM_PARTS)
        for index in range(NUM_PARTS)
    )
    return GraphFile(name=model.name, global_batch=global_batch, ops=parts, source="measured steps")


def profile_of(model: StepModel, per_host: Sequence[int]) -> Profile:
    """A rank for each number of GPUs that a host may use."""
    ranks = []
    for rank, count in enumerate(per_host):
        whole = model.seconds(count)
        forward = _times(whole, (1 - model.overlap) / NUM_PARTS)
        backward = _times(whole, model.overlap / NUM_PARTS)
        ops = tuple(
            OpProfile(name=f"part{index}", kind="part", forward=forward, backward=backward)
            for index in range(NUM_PARTS)
        )
        ranks.append(RankProfile(rank=rank, device=model.device_name(count), host=HOST, compute=whole, ops=ops))
    return Profile(workload=model.name, cluster=model.device, label=LABEL, ranks=tuple(ranks))


def cluster_of(model: StepModel, placement: Sequence[int]) -> Cluster:
    """Hosts with so many GPUs each."""
    pair = 1 + model.pair_loss if len(placement) == 2 else 1.0
    hosts = []
    for index, count in enumerate(placement):
        speed = model.nic_bytes_per_s / (1 + model.nic_loss * (count - 1)) / pair
        hosts.append(
            Host(
                name=f"host{index}",
                devices=(Device(name=model.device_name(count)),) * count,
                link=Link(up_bytes_per_s=speed, down_bytes_per_s=speed),
                fabric=Fabric(
                    device=Link(up_bytes_per_s=model.fabric_bytes_per_s, down_bytes_per_s=model.fabric_bytes_per_s)
                ),
            )
        )
    return Cluster(name=f"{model.device}-{'+'.join(map(str, placement))}", hosts=tuple(hosts))


class Predictions:
    """Predicted steps of a model; placements are set up once."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._graph: OpGraph = op_graph(graph_of(model, 1))
        self._simulators: dict[tuple[int, ...], Simulator] = {}

    def step_s(self, placement: tuple[int, ...], samples: int) -> float:
        """Of torch DDP with its default buckets and a ring, `samples` on each GPU."""
        if placement not in self._simulators:
            self._simulators[placement] = self._make(placement)
        plan = default_plan((samples,) * sum(placement), transport="gloo")
        return self._simulators[placement].step_s(plan)

    def _make(self, placement: tuple[int, ...]) -> Simulator:
        cluster = cluster_of(self._model, placement)
        profile = profile_of(self._model, sorted(set(placement)))
        info = WorkloadInfo(
            name=self._model.name,
            options={},
            fingerprint="",
            global_batch=sum(placement),
            param_bytes=self._graph.param_bytes,
            flops_per_sample=0.0,
        )
        return Simulator(info, self._graph, cost_model(self._graph, cluster, [profile]))


def _times(fit: WorkFit, factor: float) -> WorkFit:
    return replace(
        fit,
        fixed_s=fit.fixed_s * factor,
        per_sample_s=fit.per_sample_s * factor,
        points=tuple((samples, seconds * factor) for samples, seconds in fit.points),
    )
