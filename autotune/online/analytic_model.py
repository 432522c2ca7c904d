"""An analytic estimate of the step time of many plans, from the network and the ranks that a window measured.

It sums messages at a few moments of a pass instead of simulating events, so hundreds of plans take a fraction of a
millisecond. Behind a barrier, every message that is not ready at a moment of the backward pass is sent after it: the step
takes at least that moment plus the time of those messages. With cross-step overlap, the messages that the forward pass
needs by a moment have from their readiness until then. Stragglers and shared links are not modelled; the meta-network
learns where the estimate is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from autotune.online.message_layout import MOMENTS, Floats, MessageLayout
from autotune.online.priors import Priors
from autotune.online.window import Network, Window
from autotune.workloads.plan import CODECS, Plan, Priority, ReducerKind

_TINY = 1e-4
_NO_NETWORK = Network(bytes_per_s=1e12, latency_s=0.0)
_BUCKETS_IN_FLIGHT = 2.0
"""gloo has two threads."""


class AnalyticModel:
    """Plans as columns of arrays, one entry per plan."""

    def __init__(self, plans: Sequence[Plan], layouts: Sequence[MessageLayout], priors: Priors) -> None:
        comms = [plan.comm for plan in plans]
        total = max(priors.model.total_bytes, 1)
        self.wire_bytes = _column(layouts, "wire_bytes")
        self.num_messages = _column(layouts, "num_messages")
        self.largest_bytes = _column(layouts, "largest_bytes")
        self.num_rounds = _column(layouts, "num_rounds")
        self.last_needed = _column(layouts, "last_needed")
        self.late_bytes, self.late_count = _column(layouts, "late_bytes"), _column(layouts, "late_count")
        self.early_bytes, self.early_count = _column(layouts, "early_bytes"), _column(layouts, "early_count")
        self.early_ready = _column(layouts, "early_ready")
        self.codec_s = np.array([_codec_s(layout, priors) for layout in layouts], np.float64)
        self.message_codec_share = np.array([_message_codec_bytes(layout) for layout in layouts], np.float64) / total
        self.ratio_log = log_of(self.wire_bytes / total)
        self.messages_log = np.log(np.maximum(self.num_messages, 1.0))
        self.is_shards = np.array([comm.collective == "shards" for comm in comms], np.float64)
        self.collective_gain = np.array([priors.collective_gain(comm) for comm in comms])
        self.crosses = np.array([comm.overlaps_steps for comm in comms])
        self.is_fifo = np.array([comm.priority == Priority.FIFO for comm in comms])
        scheduled = np.array([comm.is_scheduled for comm in comms])
        self.flags = np.column_stack(
            [
                np.array([comm.reducer == ReducerKind.DDP for comm in comms]),
                scheduled,
                self.crosses,
                self.is_fifo,
                self.is_shards,
            ]
        ).astype(np.float64)
        allowed = np.array([comm.credit_bytes for comm in comms], np.float64)
        self.credit_bytes = np.where(scheduled, np.minimum(allowed, self.wire_bytes), self.wire_bytes)
        parts = self.credit_bytes / np.maximum(self.wire_bytes / np.maximum(self.num_messages, 1.0), 1.0)
        self.in_flight = np.where(scheduled, np.clip(parts, 1.0, None), _BUCKETS_IN_FLIGHT)
        self.credit_parts_log = log_of(self.credit_bytes / np.maximum(self.largest_bytes, 1.0))

    def exposed_latency_s(self, seen: Window) -> Floats:
        """The part of a message's latency that is not hidden by other messages in flight.

        k messages in flight take (latency + transfer)/k each, and at least their transfer time.
        """
        network = network_of(seen)
        latency_s = seen.priors.message_s if seen.priors.message_s is not None else network.latency_s
        bytes_s = self.wire_bytes / np.maximum(self.num_messages, 1.0) / network.bytes_per_s
        exposed: Floats = np.maximum((latency_s + bytes_s) / self.in_flight - bytes_s, 0.0)
        return exposed

    def predict(
        self, seen: Window, running: AnalyticModel, network: Network, compute_s: float, latency_s: Floats | float
    ) -> dict[str, Floats]:
        """Seconds of each part of a step on the links and devices of a window. `latency_s`: of one message."""
        each_s = np.broadcast_to(np.asarray(latency_s, np.float64), self.wire_bytes.shape)
        # Relative to the collective that runs; 1 if the links are not known.
        collective = self.collective_gain / running.collective_gain[0]
        byte_s = 1 / (network.bytes_per_s * collective)
        busy_s = compute_s + self.codec_s
        forward = fmean(rank.forward_s / rank.compute_s for rank in seen.computing)
        late_s = self.late_bytes * byte_s[:, None] + self.late_count * each_s[:, None]
        moments = np.array(MOMENTS)
        # Messages are sent in the order in which they are ready: the rest follows each moment of the backward pass.
        passed = (1 - forward) * moments * busy_s[:, None]
        barrier_s = np.maximum(forward * busy_s + (passed + late_s).max(axis=1), busy_s)
        sent_s = self.wire_bytes * byte_s + self.num_messages * each_s
        credit_s = self.credit_bytes * byte_s
        # Cross-step overlap by priority: what the forward pass needs by a moment has from its readiness until then.
        early_s = self.early_bytes * byte_s[:, None] + self.early_count * each_s[:, None]
        room = ((1 - forward) * (1 - self.early_ready) + forward * moments) * busy_s[:, None]
        by_priority_s = busy_s + np.maximum(
            (early_s - room).max(axis=1) + np.minimum(credit_s, sent_s - early_s[:, 0]), 0.0
        )
        fifo_s = barrier_s - forward * self.last_needed * busy_s
        overlapped_s = np.maximum(np.where(self.is_fifo, fifo_s, by_priority_s), np.maximum(sent_s, busy_s))
        return {
            "collective": collective,
            "wire": self.wire_bytes * byte_s,
            "latencies": self.num_messages * each_s,
            "largest": self.largest_bytes * byte_s,
            "credit": credit_s,
            "step": np.where(self.crosses, np.minimum(overlapped_s, barrier_s), barrier_s),
        }


def network_of(seen: Window) -> Network:
    """The fitted network; one that takes no time if nothing was sent."""
    return seen.network or _NO_NETWORK


def log_of(value: Floats | float) -> Floats:
    """The logarithm of a share that may be 0."""
    logarithm: Floats = np.log(np.maximum(value, 0.0) + _TINY)
    return logarithm


def _codec_s(layout: MessageLayout, priors: Priors) -> float:
    """Seconds of encoding and decoding per step; 0 for codecs that were not profiled."""
    return sum(num_bytes * priors.codec_s_per_byte.get(codec, 0.0) for codec, num_bytes in layout.codec_bytes)


def _message_codec_bytes(layout: MessageLayout) -> float:
    """Gradient bytes that are gathered or swapped from rank to rank, not summed."""
    return sum(num_bytes for codec, num_bytes in layout.codec_bytes if CODECS[codec].needs_messages)


def _column(layouts: Sequence[MessageLayout], name: str) -> Floats:
    return np.array([getattr(layout, name) for layout in layouts], np.float64)
