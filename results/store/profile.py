"""A profile: what a workload's ops cost on each rank's device, and what the links and collectives between them cost.

Every cost is a line with its source and range (autotune.results.store.fits), so that a prediction can name what it rests on and refuse
to extrapolate. The format is also what a device or network measured elsewhere is written in (docs/files.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.results.store.fits import MemoryFit, Source, TransferFit, TransferRow, WorkFit
from autotune.workloads.serial import digest

PROFILE_KIND = "autotune profile"
PROFILE_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkProfile:
    """The path from one host to another (or, where both are the same, between two ranks of a host)."""

    from_host: str
    to_host: str
    transport: str
    fit: TransferFit
    rows: tuple[TransferRow, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLink:
    """A host's own link, concluded from the pairs it takes part in: a pair goes at min(uplink, downlink)."""

    host: str
    source: Source
    up_bytes_per_s: float | None
    """None: no pair from this host was measured, or none was slow enough to be measured."""
    down_bytes_per_s: float | None
    up_is_limit: bool = True
    """Some receiver was seen to take more, so it is this uplink that limits. False: the uplink is at least this fast."""
    down_is_limit: bool = True
    latency_s: float = 0.0
    """Of the quickest pair from or to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveProfile:
    """A collective over all ranks of the job."""

    kind: str
    """"all-reduce", "broadcast" or "all-gather"."""
    transport: str
    num_ranks: int
    fit: TransferFit
    rows: tuple[TransferRow, ...] = ()
    collective: str = "ring"
    """How an all-reduce is carried out, as in a plan's `comm.collective`."""
    in_flight: tuple[TransferRow, ...] = ()
    """Of all-reduces: seconds of each of `num_in_flight` that were posted together."""
    num_in_flight: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OpProfile:
    """One op of the model, under the name it has in autotune.workloads.capture; without its children."""

    name: str
    kind: str
    forward: WorkFit
    backward: WorkFit


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPoint:
    """Whole steps of one batch size, medians."""

    num_samples: int
    data_s: float
    compute_s: float
    """Forward and backward, without probes."""
    optimizer_s: float
    ops_s: float
    """The sum of the ops, measured with probes."""
    unattributed_s: float
    """compute_s − ops_s: what no op accounts for. Below zero, the probes cost more than was missed."""
    peak_memory_bytes: int
    late_s: float = 0.0
    """Emulated devices: how far real work was behind the device. Above a few percent, trust nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecRow:
    """One size of gradient, medians."""

    num_bytes: int
    """Of the float32 gradient, before it is encoded."""
    encode_s: float
    decode_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecProfile:
    """What a rank needs to make a gradient ready for the wire, and to put what comes back in its place.

    Both are over the bytes of the float32 gradient, not of what is sent.
    """

    name: str
    """As in a plan's `compression.codec`. There is none for "none", which costs nothing."""
    encode: TransferFit
    decode: TransferFit
    rows: tuple[CodecRow, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedProfile:
    """Times of one of several devices that share every op (tensor parallelism). Samples are those that they compute together."""

    degree: int
    """Number of devices."""
    compute: WorkFit
    ops: tuple[OpProfile, ...]
    includes_sums: bool = False
    """The times contain the sums of outputs over the devices, on links like those of the cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProfile:
    """One rank's device."""

    rank: int
    device: str
    host: str
    compute: WorkFit
    """Forward and backward as a whole, without probes."""
    ops: tuple[OpProfile, ...] = ()
    """In the order they run forward."""
    optimizer: WorkFit | None = None
    data: WorkFit | None = None
    memory: MemoryFit | None = None
    steps: tuple[StepPoint, ...] = ()
    codecs: tuple[CodecProfile, ...] = ()
    sharded: tuple[ShardedProfile, ...] = ()
    """`autotune profile` measures none; profiles from elsewhere may have them."""

    def op(self, name: str) -> OpProfile | None:
        return next((op for op in self.ops if op.name == name), None)

    def shared_by(self, degree: int) -> ShardedProfile | None:
        return next((one for one in self.sharded if one.degree == degree), None)

    def codec(self, name: str) -> CodecProfile | None:
        return next((codec for codec in self.codecs if codec.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What a simulator reads about one workload on one cluster."""

    workload: str
    cluster: str
    label: str
    """"emulated", "lab", "measured on this machine", or what a profile from elsewhere calls itself."""
    ranks: tuple[RankProfile, ...]
    kind: str = PROFILE_KIND
    schema: int = PROFILE_SCHEMA
    workload_fingerprint: str = ""
    """Empty in a profile from elsewhere: it is then matched by the names of its ops."""
    cluster_fingerprint: str = ""
    links: tuple[LinkProfile, ...] = ()
    hosts: tuple[HostLink, ...] = ()
    collectives: tuple[CollectiveProfile, ...] = ()
    unavailable: dict[str, str] = field(default_factory=dict)
    """What was not measured, and why."""
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    created_at: str = ""

    @property
    def fingerprint(self) -> str:
        return joint_fingerprint(self.workload_fingerprint, self.cluster_fingerprint)

    def link(self, from_host: str, to_host: str) -> LinkProfile | None:
        return next((link for link in self.links if (link.from_host, link.to_host) == (from_host, to_host)), None)

    def collective(self, kind: str, transport: str, collective: str = "ring") -> CollectiveProfile | None:
        wanted = kind, transport, collective
        return next((one for one in self.collectives if (one.kind, one.transport, one.collective) == wanted), None)


def joint_fingerprint(workload_fingerprint: str, cluster_fingerprint: str) -> str:
    """Of the workload and the cluster together: names a profile's file."""
    return digest([workload_fingerprint, cluster_fingerprint])
