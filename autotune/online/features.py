"""Windows and candidates as numbers, all of them without a unit: seconds are in multiples of the slowest rank's computing.

Nothing depends on the order of ranks. A candidate's numbers include a rough guess of its step from the fitted network
(when which bytes are there, what they take, when they are needed): the network then has to learn only where that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from autotune.online.known import Known
from autotune.online.plan_shape import MOMENTS, Floats, PlanShape, plan_shape
from autotune.online.statistics import Network, Window
from workloads.plan import Plan

Singles = NDArray[np.float32]

FEATURES_VERSION = 1
"""Other numbers, or the same in another order, are another version: weights belong to one."""

_TINY = 1e-4
_NO_NETWORK = Network(bytes_per_s=1e12, latency_s=0.0)
_BUCKETS_AT_ONCE = 2.0
"""gloo has two threads."""
_QUARTERS = (0.25, 0.5, 0.75)

WINDOW_FEATURES = (
    "step_log",
    "wire_log",
    "latency_log",
    "communication_log",
    "forward_share",
    "forward_p95_log",
    "backward_p95_log",
    "slowest_over_mean_log",
    "slowest_over_fastest_log",
    "rank_spread",
    "wait_mean",
    "wait_least",
    "wait_most",
    "stalled_share",
    "queue_log",
    "flight_log",
    "guess_error",
    "world_log",
    "is_mpi",
    "is_nccl",
    "links_known",
    "shards_gain_log",
    "message_known",
    "message_log",
    "codecs_known",
    "tensors_log",
    "bytes_log",
    "largest_share",
    *(f"sizes_{number}" for number in range(8)),
    *(f"ready_{quarter}" for quarter in _QUARTERS),
    *(f"needed_{quarter}" for quarter in _QUARTERS),
    *(f"running_{name}" for name in ("scheduled", "crosses", "fifo", "shards", "messages_log", "ratio_log")),
)

CANDIDATE_FEATURES = (
    "is_running",
    "is_ddp",
    "is_scheduled",
    "crosses",
    "is_fifo",
    "is_shards",
    "changes_collective",
    "collective_gain_log",
    "ratio_log",
    "is_message_codec",
    "num_rounds",
    "codec_log",
    "messages_log",
    "messages_change_log",
    "largest_log",
    "credit_parts_log",
    "credit_log",
    "wire_log",
    "latencies_log",
    "busy_log",
    "exposed_log",
    "guess_log",
    "guess_gain",
    "guess_gain_overlapped",
    "guess_gain_without_latency",
)


class Grid:
    """Candidates with what of their numbers no window changes."""

    def __init__(self, plans: Sequence[Plan], known: Known) -> None:
        self.plans, self.known = tuple(plans), known
        self._shapes = [plan_shape(plan, known.model) for plan in self.plans]
        self._table = _Table(self.plans, self._shapes, known)

    def numbers(self, seen: Window) -> tuple[Singles, Singles]:
        """The window's numbers, and a row for each candidate."""
        running = _Table([seen.plan], [plan_shape(seen.plan, self.known.model)], self.known)
        network, unit_s = _network(seen), seen.compute_s
        compute_s = max(unit_s - float(running.codec_s[0]), 0.1 * unit_s)
        before, after = (
            table.guess(seen, running, network, compute_s, network.latency_s) for table in (running, self._table)
        )
        plain, overlapped = (
            [table.guess(seen, running, network, compute_s, latency_s)["step"] for table, latency_s in tables]
            for tables in (
                [(running, 0.0), (self._table, 0.0)],
                [(table, table.hidden_latency_s(seen)) for table in (running, self._table)],
            )
        )
        rows = np.column_stack(
            [
                np.array([plan == seen.plan for plan in self.plans], np.float64),
                self._table.flags,
                self._table.is_shards != running.is_shards,
                _log(after["collective"]),
                self._table.ratio_log,
                self._table.is_message_codec,
                self._table.num_rounds,
                _log(self._table.codec_s / unit_s),
                self._table.messages_log,
                self._table.messages_log - running.messages_log,
                _log(after["largest"] / unit_s),
                self._table.credit_parts_log,
                _log(after["credit"] / unit_s),
                _log(after["wire"] / unit_s),
                _log(after["latencies"] / unit_s),
                _log((after["wire"] + after["latencies"]) / unit_s),
                _log(np.maximum(after["step"] - unit_s, 0.0) / unit_s),
                _log(after["step"] / unit_s),
                np.log(before["step"] / after["step"]),
                np.log(overlapped[0] / overlapped[1]),
                np.log(plain[0] / plain[1]),
            ]
        )
        return window_numbers(seen, running, float(before["step"][0])), rows.astype(np.float32)


class _Table:
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
        self.ratio_log = _log(self.wire_bytes / total)
        self.messages_log = np.log(np.maximum(self.num_messages, 1.0))
        self.is_shards = np.array([comm.collective == "shards" for comm in comms], np.float64)
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
        self.credit_parts_log = _log(self.credit_bytes / np.maximum(self.largest_bytes, 1.0))

    def hidden_latency_s(self, seen: Window) -> Floats:
        """What is left of a message's latency where the credit lets several be under way: k at once take (a + m)/k each, and
        no less than their bytes.
        """
        network = _network(seen)
        latency_s = seen.known.message_s if seen.known.message_s is not None else network.latency_s
        bytes_s = self.wire_bytes / np.maximum(self.num_messages, 1.0) / network.bytes_per_s
        taken: Floats = np.maximum((latency_s + bytes_s) / self.at_once - bytes_s, 0.0)
        return taken

    def guess(
        self, seen: Window, running: _Table, network: Network, compute_s: float, latency_s: Floats | float
    ) -> dict[str, Floats]:
        """Seconds of everything, were links and devices as the window shows them. `latency_s`: of a message."""
        each_s = np.broadcast_to(np.asarray(latency_s, np.float64), self.wire_bytes.shape)
        # To shards from a ring, or back; as it runs where nobody knows the links.
        collective = (seen.known.shards_gain or 1.0) ** (self.is_shards - running.is_shards[0])
        byte_s = 1 / (network.bytes_per_s * collective)
        busy_s = compute_s + self.codec_s
        forward = fmean(rank.forward_s / rank.compute_s for rank in seen.ranks)
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


def window_numbers(seen: Window, running: _Table, guessed_s: float) -> Singles:
    """The numbers of `WINDOW_FEATURES`, in their order."""
    network, model, unit_s = _network(seen), seen.known.model, seen.compute_s
    computing = [rank.compute_s for rank in seen.ranks]
    waits = [rank.wait_share for rank in seen.ranks]
    gain = seen.known.shards_gain
    values = [
        np.log(seen.step_s / unit_s),
        _log(model.total_bytes / network.bytes_per_s / unit_s),
        _log(network.latency_s / unit_s),
        _log(seen.communication_ratio),
        fmean(rank.forward_s / rank.compute_s for rank in seen.ranks),
        fmean(_ratio_log(rank.forward_p95_s, rank.forward_s) for rank in seen.ranks),
        fmean(_ratio_log(rank.backward_p95_s, rank.backward_s) for rank in seen.ranks),
        np.log(unit_s / fmean(computing)),
        np.log(unit_s / min(computing)),
        pstdev(computing) / unit_s,
        fmean(waits),
        min(waits),
        max(waits),
        seen.stalled_share,
        _log(seen.queue_s / unit_s),
        _log(seen.flight_s / unit_s),
        np.log(seen.step_s / guessed_s),
        np.log(seen.world_size),
        seen.transport == "mpi",
        seen.transport == "nccl",
        gain is not None,
        np.log(gain or 1.0),
        seen.known.message_s is not None,
        _log((seen.known.message_s or 0.0) / unit_s),
        bool(seen.known.codec_s_per_byte),
        np.log(max(len(model.sizes_bytes), 1)),
        np.log(max(model.total_bytes, 1)) - 16,
        model.largest_share,
        *model.histogram(),
        *(model.ready_share(moment) for moment in _QUARTERS),
        *(model.needed_share(moment) for moment in _QUARTERS),
        running.flags[0, 1],
        running.flags[0, 2],
        running.flags[0, 3],
        running.flags[0, 4],
        running.messages_log[0],
        running.ratio_log[0],
    ]
    return np.array(values, np.float32)


def _network(seen: Window) -> Network:
    return seen.network or _NO_NETWORK


def _column(shapes: Sequence[PlanShape], name: str) -> Floats:
    return np.array([getattr(shape, name) for shape in shapes], np.float64)


def _log(value: Floats | float) -> Floats:
    """Of a share that may be nothing."""
    taken: Floats = np.log(np.maximum(value, 0.0) + _TINY)
    return taken


def _ratio_log(value: float, usual: float) -> float:
    return float(np.log(value / usual)) if usual > 0 and value > 0 else 0.0
