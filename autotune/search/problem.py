"""What a search must know of a job: the model, the cluster, and what may be chosen."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.simulate.factors import factor_chooser
from autotune.space.pipeline_points import NO_STAGES, StagedPlans
from autotune.space.space import Space, joint_space
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import LOSSLESS_CODECS, ONE_ROUND_CODECS
from autotune.workloads.split import Bounds
from autotune.workloads.workload import PLAIN_LOOP, Loop


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Which plans may be proposed, for what."""

    global_batch: int
    param_bytes: int
    graph: OpGraph
    cluster: Cluster
    limits: Bounds
    """Fewest and most samples per rank."""
    transports: tuple[str, ...]
    codecs: tuple[str, ...] = ONE_ROUND_CODECS
    """What a search that may be lossy chooses from."""
    loop: Loop = PLAIN_LOOP
    """What the workload states of its training loop."""
    staged: StagedPlans = NO_STAGES
    """Plans with pipeline stages that a search may choose."""

    @property
    def num_ranks(self) -> int:
        return len(self.cluster.devices)

    def space(self, reference: tuple[float, ...] | None = None, *, allow_lossy: bool) -> Space:
        """What may be tuned, around these speeds of the ranks; all alike unless given."""
        return joint_space(
            global_batch=self.global_batch,
            limits=self.limits,
            reference=reference or (1.0,) * self.num_ranks,
            transports=self.transports,
            codecs=self.codecs if allow_lossy else LOSSLESS_CODECS,
            param_bytes=self.param_bytes,
            graph=self.graph,
            factors_for=factor_chooser(self.graph, self.cluster),
            loop=self.loop,
            staged=self.staged,
        )
