"""The part of a plan that says how gradients are sent."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose

from autotune.workloads.errors import SpecError
from autotune.workloads.plan.choices import COLLECTIVES, TRANSPORTS, Priority, ReducerKind

MIB = 2**20
DDP_BUCKET_BYTES = 25 * MIB
"""DDP's default, with which its first bucket is 1 MiB; any other size given to DDP holds for all buckets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommPlan:
    """How gradients travel."""

    reducer: str = ReducerKind.BUCKETED
    """What sums gradients over ranks: see `ReducerKind`."""
    transport: str = "gloo"
    bucket_bytes: int = DDP_BUCKET_BYTES
    """Gradients are fused into buckets of about this size, sent as soon as complete."""
    collective: str = "ring"
    """How a sum over ranks is carried out: see `COLLECTIVES`."""
    servers: tuple[int, ...] = ()
    """With "server": the ranks whose hosts hold the parameters, an equal share each."""
    shares: tuple[float, ...] = ()
    """With "shards": what each rank owns; empty: in proportion to the bandwidths that the cluster file states."""
    partition_bytes: int = 4 * MIB
    """Of "scheduled": gradients are fused and cut into partitions of about this size."""
    credit_bytes: int = 16 * MIB
    """Of "scheduled": partitions are sent while fewer bytes than this are in flight."""
    priority: str = Priority.LAYER
    """Of "scheduled": which partition is sent first, see `Priority`."""
    crosses_steps: bool = False
    """Of "scheduled": a layer's next forward pass waits for its own parameters only, not for the whole step's."""
    average_every: int = 8
    """Of "averaged": steps from one mean of all models to the next."""

    @property
    def is_scheduled(self) -> bool:
        """Partitions are sent by priority under a credit."""
        return self.reducer == ReducerKind.SCHEDULED

    @property
    def overlaps_steps(self) -> bool:
        """A step begins before the gradients of the last one have arrived."""
        return self.is_scheduled and self.crosses_steps

    @property
    def message_bytes(self) -> int:
        """About the size of what is sent at once: a partition or a bucket."""
        return self.partition_bytes if self.is_scheduled else self.bucket_bytes

    def check(self, num_ranks: int) -> None:
        """Refuse what no job of so many ranks can mean."""
        for what, value, known in (
            ("reducer", self.reducer, list(ReducerKind)),
            ("collective", self.collective, COLLECTIVES),
            ("transport", self.transport, TRANSPORTS),
            ("priority", self.priority, list(Priority)),
        ):
            check_known(what, value, tuple(known))
        for name in ("bucket_bytes", "partition_bytes", "credit_bytes", "average_every"):
            if getattr(self, name) < 1:
                raise SpecError(f"the plan's {name} is {getattr(self, name)}: it must be at least 1")
        if (self.collective == "server") != bool(self.servers):
            raise SpecError(
                f"the plan's collective is {self.collective!r} with servers {list(self.servers)}: name server ranks with "
                "'server' and only with it"
            )
        if self.shares and self.collective != "shards":
            raise SpecError(
                f"the plan's collective is {self.collective!r} with shares {list(self.shares)}: only 'shards' have owners"
            )
        if self.shares and (
            len(self.shares) != num_ranks or min(self.shares) < 0 or not isclose(sum(self.shares), 1.0)
        ):
            raise SpecError(
                f"the plan's shares are {list(self.shares)}: {num_ranks} ranks need one each, none negative, summing to 1"
            )
        if any(not 0 <= rank < num_ranks for rank in self.servers):
            raise SpecError(f"the plan's servers {list(self.servers)} must be ranks from 0 to {num_ranks - 1}")


def check_known(what: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a name that is none of those."""
    if value not in known:
        raise SpecError(f"the plan's {what} is {value!r}: it must be one of {', '.join(known)}")
