"""Features of windows and candidates for the meta-network. All are dimensionless: times are relative to the slowest rank's.

Features do not depend on the order of ranks. A candidate's features include the step time that the analytic model
predicts from the fitted network, so the meta-network learns only the error of that prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from autotune.online.analytic_model import AnalyticModel, log_of, network_of
from autotune.online.background import yielding
from autotune.online.message_layout import layout_of
from autotune.online.priors import Priors
from autotune.online.window import Window
from autotune.workloads.plan import Plan

Float32s = NDArray[np.float32]

FEATURES_VERSION = 1
"""Increased when the features or their order change. Weights are valid for one version only."""

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


class FeatureTable:
    """The candidates of a job. Holds the part of their features that is the same for all windows."""

    def __init__(self, plans: Sequence[Plan], priors: Priors) -> None:
        self.plans, self.priors = tuple(plans), priors
        layouts = [layout_of(plan, priors.model) for plan in yielding(self.plans)]
        self._model = AnalyticModel(self.plans, layouts, priors)

    def features(self, seen: Window) -> tuple[Float32s, Float32s]:
        """The features of a window, and one row of features per candidate."""
        running = AnalyticModel([seen.plan], [layout_of(seen.plan, self.priors.model)], self.priors)
        network, unit_s = network_of(seen), seen.compute_s
        compute_s = max(unit_s - float(running.codec_s[0]), 0.1 * unit_s)
        before, after = (
            model.predict(seen, running, network, compute_s, network.latency_s) for model in (running, self._model)
        )
        plain, overlapped = (
            [model.predict(seen, running, network, compute_s, latency_s)["step"] for model, latency_s in cases]
            for cases in (
                [(running, 0.0), (self._model, 0.0)],
                [(model, model.exposed_latency_s(seen)) for model in (running, self._model)],
            )
        )
        rows = np.column_stack(
            [
                np.array([plan == seen.plan for plan in self.plans], np.float64),
                self._model.flags,
                self._model.is_shards != running.is_shards,
                log_of(after["collective"]),
                self._model.ratio_log,
                self._model.message_codec_share,
                self._model.num_rounds,
                log_of(self._model.codec_s / unit_s),
                self._model.messages_log,
                self._model.messages_log - running.messages_log,
                log_of(after["largest"] / unit_s),
                self._model.credit_parts_log,
                log_of(after["credit"] / unit_s),
                log_of(after["wire"] / unit_s),
                log_of(after["latencies"] / unit_s),
                log_of((after["wire"] + after["latencies"]) / unit_s),
                log_of(np.maximum(after["step"] - unit_s, 0.0) / unit_s),
                log_of(after["step"] / unit_s),
                np.log(before["step"] / after["step"]),
                np.log(overlapped[0] / overlapped[1]),
                np.log(plain[0] / plain[1]),
            ]
        )
        return window_features(seen, running, float(before["step"][0])), rows.astype(np.float32)


def window_features(seen: Window, running: AnalyticModel, predicted_s: float) -> Float32s:
    """The values of `WINDOW_FEATURES`, in their order. `predicted_s`: the analytic model's step time of the plan that runs."""
    network, model, unit_s = network_of(seen), seen.priors.model, seen.compute_s
    computing = [rank.compute_s for rank in seen.computing]
    waits = [rank.wait_share for rank in seen.ranks]
    gain = seen.priors.shards_gain
    values = [
        np.log(seen.step_s / unit_s),
        log_of(model.total_bytes / network.bytes_per_s / unit_s),
        log_of(network.latency_s / unit_s),
        log_of(seen.communication_ratio),
        fmean(rank.forward_s / rank.compute_s for rank in seen.computing),
        fmean(_ratio_log(rank.forward_p95_s, rank.forward_s) for rank in seen.computing),
        fmean(_ratio_log(rank.backward_p95_s, rank.backward_s) for rank in seen.computing),
        np.log(unit_s / fmean(computing)),
        np.log(unit_s / min(computing)),
        pstdev(computing) / unit_s,
        fmean(waits),
        min(waits),
        max(waits),
        seen.stalled_share,
        log_of(seen.queue_s / unit_s),
        log_of(seen.flight_s / unit_s),
        np.log(seen.step_s / predicted_s),
        np.log(seen.world_size),
        seen.transport == "mpi",
        seen.transport == "nccl",
        gain is not None,
        np.log(gain or 1.0),
        seen.priors.message_s is not None,
        log_of((seen.priors.message_s or 0.0) / unit_s),
        bool(seen.priors.codec_s_per_byte),
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


def _ratio_log(value: float, usual: float) -> float:
    return float(np.log(value / usual)) if usual > 0 and value > 0 else 0.0
