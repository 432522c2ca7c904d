"""What a search must know of a job: the model, the cluster, and what may be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.simulate.factors import factor_chooser
from autotune.space.pipeline_points import NO_STAGES, StagedPlans
from autotune.space.rank_sets import ALL_RANKS, RankSets
from autotune.space.space import Space, configurations, kinds_of, max_bucket_log2
from autotune.workloads.cluster import Cluster
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import lossless_codecs, one_round_codecs
from autotune.workloads.rank_kinds import kinds_of_ranks
from autotune.workloads.split import Bounds
from autotune.workloads.workload import PLAIN_LOOP, Loop

EACH_RANK = 16
"""Up to so many ranks, each has a share of the batch of its own; in larger clusters, each kind of ranks has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Which plans may be proposed, for what."""

    global_batch: int
    param_bytes: int
    graph: OpGraph | None
    """None where the model was not captured: then there are no sufficient factors and no kinds of layers to choose."""
    cluster: Cluster
    limits: Bounds
    """Fewest and most samples per rank."""
    transports: tuple[str, ...]
    codecs: tuple[str, ...] = field(default_factory=one_round_codecs)
    """What a search that may be lossy chooses from."""
    loop: Loop = PLAIN_LOOP
    """What the workload states of its training loop."""
    staged: StagedPlans = NO_STAGES
    """Plans with pipeline stages that a search may choose."""
    rank_sets: RankSets = ALL_RANKS
    """Sets of ranks that a plan may use, besides all of them."""

    @property
    def num_ranks(self) -> int:
        return len(self.cluster.devices)

    def space(self, reference: tuple[float, ...] | None = None, *, allow_lossy: bool) -> Space:
        """What may be tuned, around these speeds of the ranks; all alike unless given."""
        graph = self.graph
        return Space(
            global_batch=self.global_batch,
            limits=self.limits,
            reference=reference or (1.0,) * self.num_ranks,
            transports=self.transports,
            codecs=self.codecs if allow_lossy else lossless_codecs(),
            max_bucket_log2=max_bucket_log2(self.param_bytes),
            factors_for=factor_chooser(graph, self.cluster) if graph is not None else None,
            kinds=kinds_of(graph) if graph is not None else (),
            staged=self.staged,
            rank_sets=self.rank_sets,
            rank_kinds=kinds_of_ranks(self.cluster) if self.num_ranks > EACH_RANK else (),
            **configurations(self.num_ranks, self.transports, self.loop, self.cluster),
        )
