"""A rough guess of what a step takes under each of many plans, from the network and the ranks as a window shows them.

Sums over messages at a few moments of a pass instead of events, so that hundreds of plans take a fraction of a
millisecond. Behind a barrier: whatever is not there at a moment of the backward pass is sent after it, so the step is
at least that moment plus what those messages take. Crossing by layer: what the forward pass has read by a moment had from
when it was ready until then. It knows neither stragglers nor shared links; where it is wrong, the meta-network learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from autotune.online.message_layout import MOMENTS, Floats, PlanShape
from autotune.online.priors import Known
from autotune.online.window import Network, Window
from autotune.workloads.plan import Plan

_TINY = 1e-4
_NO_NETWORK = Network(bytes_per_s=1e12, latency_s=0.0)
_BUCKETS_AT_ONCE = 2.0
"""gloo has two threads."""


class PlanTable:
    """Plans as columns."""

    def __init__(self, plans: Sequence[Plan], shapes: Sequence[PlanShape], known: Known) -> None:
        comms = [plan.comm for plan in plans]
        codecs = [plan.compression.codec for plan in plans]
        total = max(known.model.total_bytes, 1)
        self.wire_bytes = _column(shapes, "wire_bytes")
        self.num_messages = _column(shapes, "num_messages")
        self.largest_bytes = _column(shapes, "largest_bytes")
        self.num_rounds = _column(shapes, "num_rounds")
        self.last_needed = _column(shapes, "last_needed")
        self.late_bytes, self.late_count = _column(shapes, "late_bytes"), _column(shapes, "late_count")
        self.early_bytes, self.early_count = _column(shapes, "early_bytes"), _column(shapes, "early_count")
        self.early_ready = _column(shapes, "early_ready")
        per_byte = np.array([known.codec_s_per_byte.get(codec, 0.0) for codec in codecs])
        self.codec_s = _column(shapes, "codec_bytes") * per_byte
        self.is_message_codec = np.array([codec in ("int8", "topk") for codec in codecs], np.float64)
        self.ratio_log = log_of(self.wire_bytes / total)
        self.messages_log = np.log(np.maximum(self.num_messages, 1.0))
        self.is_shards = np.array([comm.collective == "shards" for comm in comms], np.float64)
        self.collective_gain = np.array([known.collective_gain(comm) for comm in comms])
        self.crosses = np.array([comm.reducer == "scheduled" and comm.crosses_steps for comm in comms])
        self.is_fifo = np.array([comm.priority == "fifo" for comm in comms])
        scheduled = np.array([comm.reducer == "scheduled" for comm in comms])
        self.flags = np.column_stack(
            [np.array([comm.reducer == "ddp" for comm in comms]), scheduled, self.crosses, self.is_fifo, self.is_shards]
        ).astype(np.float64)
        allowed = np.array([comm.credit_bytes for comm in comms], np.float64)
        self.credit_bytes = np.where(scheduled, np.minimum(allowed, self.wire_bytes), self.wire_bytes)
        parts = self.credit_bytes / np.maximum(self.wire_bytes / np.maximum(self.num_messages, 1.0), 1.0)
        self.at_once = np.where(scheduled, np.clip(parts, 1.0, None), _BUCKETS_AT_ONCE)
        self.credit_parts_log = log_of(self.credit_bytes / np.maximum(self.largest_bytes, 1.0))

    def hidden_latency_s(self, seen: Window) -> Floats:
        """What is left of a message's latency where the credit lets several be under way: k at once take (a + m)/k each, and
        no less than their bytes.
        """
        network = network_of(seen)
        latency_s = seen.known.message_s if seen.known.message_s is not None else network.latency_s
        bytes_s = self.wire_bytes / np.maximum(self.num_messages, 1.0) / network.bytes_per_s
        taken: Floats = np.maximum((latency_s + bytes_s) / self.at_once - bytes_s, 0.0)
        return taken

    def guess(
        self, seen: Window, running: PlanTable, network: Network, compute_s: float, latency_s: Floats | float
    ) -> dict[str, Floats]:
        """Seconds of everything, were links and devices as the window shows them. `latency_s`: of a message."""
        each_s = np.broadcast_to(np.asarray(latency_s, np.float64), self.wire_bytes.shape)
        # To shards from a ring, or back, or to other owners; as it runs where nobody knows the links.
        collective = self.collective_gain / running.collective_gain[0]
        byte_s = 1 / (network.bytes_per_s * collective)
        busy_s = compute_s + self.codec_s
        forward = fmean(rank.forward_s / rank.compute_s for rank in seen.computing)
        late_s = self.late_bytes * byte_s[:, None] + self.late_count * each_s[:, None]
        moments = np.array(MOMENTS)
        # Sent in the order they are ready: whatever is not there at a moment of the backward pass comes after it.
        passed = (1 - forward) * moments * busy_s[:, None]
        barrier_s = np.maximum(forward * busy_s + (passed + late_s).max(axis=1), busy_s)
        sent_s = self.wire_bytes * byte_s + self.num_messages * each_s
        credit_s = self.credit_bytes * byte_s
        # Crossing, urgent ones first: what the forward pass reads by a moment has from when it is ready until then.
        early_s = self.early_bytes * byte_s[:, None] + self.early_count * each_s[:, None]
        room = ((1 - forward) * (1 - self.early_ready) + forward * moments) * busy_s[:, None]
        urgent_s = busy_s + np.maximum((early_s - room).max(axis=1) + np.minimum(credit_s, sent_s - early_s[:, 0]), 0.0)
        in_turn_s = barrier_s - forward * self.last_needed * busy_s
        crossing_s = np.maximum(np.where(self.is_fifo, in_turn_s, urgent_s), np.maximum(sent_s, busy_s))
        return {
            "collective": collective,
            "wire": self.wire_bytes * byte_s,
            "latencies": self.num_messages * each_s,
            "largest": self.largest_bytes * byte_s,
            "credit": credit_s,
            "step": np.where(self.crosses, np.minimum(crossing_s, barrier_s), barrier_s),
        }


def network_of(seen: Window) -> Network:
    """As fitted; where nothing was sent, one that takes no time."""
    return seen.network or _NO_NETWORK


def log_of(value: Floats | float) -> Floats:
    """The logarithm of a share that may be nothing."""
    taken: Floats = np.log(np.maximum(value, 0.0) + _TINY)
    return taken


def _column(shapes: Sequence[PlanShape], name: str) -> Floats:
    return np.array([getattr(shape, name) for shape in shapes], np.float64)
