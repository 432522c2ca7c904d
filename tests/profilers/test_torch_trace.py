"""Ranges of our own in a torch profile, and ops beside them: made for real, and events made up for what no CPU shows."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from autotune.profilers import ranges as ranges_module
from autotune.profilers.ranges import PHASES, Ranges, range_name, read_range
from autotune.profilers.timeline import Span
from autotune.profilers.torch_trace import SHORTEST_S, OpTrace, spans_of, wall_clock_ahead_s


def named(spans: tuple[Span, ...], track: str) -> dict[str, Span]:
    return {span.op: span for span in spans if span.track == track}


# --- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "num_bytes"),
    [("forward", None), ("post all-reduce 3", 2**20), ("decode all-reduce 0", 0), ("a [b] c", 7), ("::", None)],
)
def test_a_name_holds_what_the_range_is_about(op: str, num_bytes: int | None) -> None:
    assert read_range(range_name(op, num_bytes)) == (op, num_bytes or 0)


def test_the_name_is_what_people_read_in_the_profiler() -> None:
    assert range_name("post all-reduce 3", 2**20) == "autotune::post all-reduce 3 [1048576 B]"


@pytest.mark.parametrize(
    "name", ["aten::mm", "autotune", "autotune::", "my autotune::forward", "Optimizer.step#SGD.step"]
)
def test_other_names_are_not_ours(name: str) -> None:
    assert read_range(name) is None


# --- without a profiler -------------------------------------------------------------------------------------------------


def test_a_range_without_a_profiler_enters_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise AssertionError("record_function costs microseconds")

    monkeypatch.setattr(ranges_module, "record_function", fail)
    ours = Ranges()
    with ours.phase("forward"), ours.bucket("post", 0, torch.zeros(3)):
        pass
    with pytest.raises(AssertionError, match="microseconds"), ours.recorded():
        ours.phase("forward")
    with ours.phase("forward"):  # whatever ended the recording
        pass


# --- for real ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def traced() -> tuple[tuple[Span, ...], tuple[float, float]]:
    """A step as the trainer has it, with another library's range around forward; and when forward began and ended."""
    ours, model, data = Ranges(), torch.nn.Linear(512, 512), torch.randn(512, 512)
    with OpTrace() as trace, ours.recorded():
        begun_s = time.monotonic()
        with ours.phase("forward"), record_function("theirs"):
            loss = model(data).square().mean()
        done_s = time.monotonic()
        with ours.phase("backward"):
            model.weight.register_post_accumulate_grad_hook(lambda p: post(ours, p))
            torch.autograd.backward(loss)
    return trace.spans(rank=3), (begun_s, done_s)


def post(ours: Ranges, parameter: torch.Tensor) -> None:
    with ours.bucket("post", 0, parameter):
        pass


def test_ranges_come_back_with_their_bytes(traced: tuple[tuple[Span, ...], tuple[float, float]]) -> None:
    found = named(traced[0], "ranges")
    assert (found["forward"].kind, found["forward"].num_bytes, found["forward"].rank) == ("range", 0, 3)
    assert (found["post all-reduce 0"].kind, found["post all-reduce 0"].num_bytes) == ("range", 512 * 512 * 4)
    assert (found["theirs"].kind, found["theirs"].num_bytes) == ("other range", 0)
    backward, posted = found["backward"], found["post all-reduce 0"]
    assert backward.start_s <= posted.start_s <= posted.end_s <= backward.end_s


def test_ops_are_seen_through_ranges_and_know_their_phase(
    traced: tuple[tuple[Span, ...], tuple[float, float]],
) -> None:
    ops = named(traced[0], "ops")
    assert ops["aten::linear"].kind == "forward op"
    assert any("AddmmBackward0" in op and span.kind == "backward op" for op, span in ops.items())
    assert "aten::addmm" not in ops, "a part of aten::linear"
    assert all(span.duration_s >= SHORTEST_S for span in ops.values())


def test_spans_are_on_the_monotonic_clock(traced: tuple[tuple[Span, ...], tuple[float, float]]) -> None:
    spans, (begun_s, done_s) = traced
    forward = named(spans, "ranges")["forward"]
    assert forward.start_s == pytest.approx(begun_s, abs=2e-3)
    assert forward.end_s == pytest.approx(done_s, abs=2e-3)


def test_the_least_disturbed_reading_of_two_clocks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monotonic time before and after each reading of the wall clock: the third took no time."""
    monotonic = iter([0.0, 9.0, 10.0, 14.0, 20.0, 20.0, 30.0, 31.0, 40.0, 48.0])
    wall = iter([1000.0, 1010.0, 1021.0, 1030.0, 1040.0])
    fake = SimpleNamespace(monotonic=lambda: next(monotonic), time=lambda: next(wall))
    monkeypatch.setattr("autotune.profilers.torch_trace.time", fake)
    assert wall_clock_ahead_s() == 1001.0


# --- made up -----------------------------------------------------------------------------------------------------------


def event(name: str, start_us: float, end_us: float, *, on: str = "CPU", note: bool = False) -> Any:
    moments = SimpleNamespace(start=start_us, end=end_us, elapsed_us=lambda: end_us - start_us)
    return SimpleNamespace(
        name=name,
        time_range=moments,
        device_type=SimpleNamespace(name=on),
        is_user_annotation=note,
        cpu_parent=None,
    )


def test_a_gpus_kernels_have_a_track_and_its_copies_of_ranges_have_none() -> None:
    forward = event(range_name("forward"), 0, 100, note=True)
    kernel = event("gemm", 150, 250, on="CUDA")
    copy = event(range_name("forward"), 150, 250, on="CUDA", note=True)
    found = list(spans_of([forward, kernel, copy], rank=0, begun_s=5.0))
    assert [(span.track, span.kind, span.op) for span in found] == [
        ("ranges", "range", "forward"),
        ("device", "op", "gemm"),
    ]
    assert (found[1].start_s, found[1].end_s) == pytest.approx((5.00015, 5.00025))


def test_an_op_on_another_thread_belongs_to_the_phase_it_began_in() -> None:
    phases = [event(range_name(name), 100 * place, 100 * place + 100, note=True) for place, name in enumerate(PHASES)]
    ops = [event(f"op {place}", 100 * place + 10, 100 * place + 130) for place in range(len(PHASES) + 1)]
    kinds = [span.kind for span in spans_of([*phases, *ops], rank=0, begun_s=0.0) if span.track == "ops"]
    assert kinds == [*(f"{name} op" for name in PHASES), "op"]


def test_what_is_short_is_left_out_unless_it_is_ours() -> None:
    short_us = SHORTEST_S * 1e6 / 2
    ours = event(range_name("encode all-reduce 0", 4), 0, short_us, note=True)
    others = [event("theirs", 0, short_us, note=True), event("aten::add", 0, short_us)]
    profilers_own = event("ProfilerStep#1", 0, 1000, note=True)
    found = list(spans_of([ours, *others, profilers_own], rank=0, begun_s=0.0))
    assert [(span.op, span.num_bytes) for span in found] == [("encode all-reduce 0", 4)]


def test_a_profile_without_events_has_no_spans() -> None:
    assert list(spans_of([], rank=0, begun_s=0.0)) == []
