"""Observers keep one contract; samplers keep their beat, what was sampled, and the run out of trouble."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.profilers.amd import open_amd
from autotune.profilers.host import open_host
from autotune.profilers.nvml import open_nvml
from autotune.profilers.observer import (
    Integral,
    Meter,
    MeteredDevice,
    Metric,
    Observer,
    Rise,
    Sampler,
    Seldom,
    Unavailable,
    describe,
    pause_s,
)
from autotune.profilers.timeline import Counter
from autotune.workloads.errors import SpecError
from tests.profilers.test_host import AMD_ADDRESS, write_amd
from tests.profilers.test_nvml import UUID, a100, load


class FakeClock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def readings(*values: float | Exception | None) -> Callable[[], float | None]:
    """Reads one value after the other, raises those that are errors, and stays at the last."""
    left = list(values)

    def read() -> float | None:
        value = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(value, Exception):
            raise value
        return value

    return read


def device(**reads: Callable[[], float | None]) -> MeteredDevice:
    return MeteredDevice("fake", [Meter(name=name, unit="W", read=read) for name, read in reads.items()])


def availability(observed: Observer | Sampler) -> dict[str, str]:
    return {metric.name: metric.availability for metric in observed.metrics}


def values(sampler: Sampler) -> dict[str, list[float]]:
    return {counter.name: [value for _, value in counter.points] for counter in sampler.counters()}


# --- the contract ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["metered", "unavailable", "host", "amd", "nvml"])
def observer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observer]:
    """One of each; a new kind of observer adds a name here."""
    write_amd(tmp_path)
    load(monkeypatch, {UUID: a100(TotalEnergyConsumption=None)})
    makers: dict[str, Callable[[], Observer]] = {
        "metered": lambda: device(a=lambda: 1.0, b=readings(OSError("no"))),
        "unavailable": lambda: Unavailable(name="gone", units={"a": "W"}, reason="no device"),
        "host": lambda: open_host(sysfs=tmp_path),
        "amd": lambda: open_amd(AMD_ADDRESS, sysfs=tmp_path),
        "nvml": lambda: open_nvml(UUID),
    }
    opened = makers[request.param]()
    yield opened
    opened.close()


class TestContract:
    def test_every_metric_has_a_name_of_its_own_a_unit_and_a_plain_availability(self, observer: Observer) -> None:
        assert observer.name
        names = [metric.name for metric in observer.metrics]
        assert names
        assert len(set(names)) == len(names)
        for metric in observer.metrics:
            assert metric.unit
            assert metric.availability.startswith("available" if metric.available else "unavailable (")

    def test_only_available_metrics_are_sampled_and_they_are_numbers(self, observer: Observer) -> None:
        sampled = observer.sample()
        assert set(sampled) <= {metric.name for metric in observer.metrics if metric.available}
        assert all(type(value) is float and math.isfinite(value) for value in sampled.values())

    def test_a_sampler_makes_counters_of_it(self, observer: Observer) -> None:
        sampler = Sampler(observer, rank=3, clock=FakeClock())
        still = sampler.tick()
        assert still == any(metric.available for metric in observer.metrics)
        assert all(counter.rank == 3 and counter.points[0][0] == 100.0 for counter in sampler.counters())

    def test_closing_twice_does_no_harm(self, observer: Observer) -> None:
        observer.close()
        observer.close()


# --- meters ------------------------------------------------------------------------------------------------------------


def test_opening_a_device_asks_for_every_metric_once() -> None:
    asked: list[str] = []
    opened = device(power=lambda: asked.append("power"), clock=lambda: asked.append("clock"))
    assert asked == ["power", "clock"]
    assert availability(opened) == {"power": "available", "clock": "available"}


def test_a_metric_that_a_device_does_not_have_is_unavailable_and_not_asked_again() -> None:
    asked: list[str] = []

    def power() -> float:
        asked.append("power")
        raise OSError("Not Supported")

    opened = device(power=power, clock=lambda: 1.0)
    assert [opened.sample(), opened.sample()] == [{"clock": 1.0}] * 2
    assert availability(opened) == {"power": "unavailable (Not Supported)", "clock": "available"}
    assert asked == ["power"]


def test_a_metric_with_nothing_new_to_say_is_left_out_and_stays_available() -> None:
    opened = device(load=readings(None, None, 5.0))
    assert [opened.sample(), opened.sample()] == [{}, {"load": 5.0}]
    assert availability(opened) == {"load": "available"}


def test_a_note_says_how_a_value_is_come_by() -> None:
    opened = MeteredDevice("fake", [Meter(name="e", unit="J", read=lambda: 1.0, note="integrated from power")])
    assert availability(opened) == {"e": "available (integrated from power)"}


def test_a_device_is_closed_once() -> None:
    closed: list[bool] = []
    opened = MeteredDevice("fake", [], close=lambda: closed.append(True))
    opened.close()
    opened.close()
    assert closed == [True]


def test_a_device_that_cannot_be_opened_says_why_for_every_metric() -> None:
    gone = Unavailable(name="gone", units={"power": "W", "energy": "J"}, reason="no driver")
    assert gone.metrics == (
        Metric(name="power", unit="W", reason="no driver"),
        Metric(name="energy", unit="J", reason="no driver"),
    )
    assert gone.sample() == {}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("GPU is lost"), "GPU is lost"),
        (PermissionError(13, "Permission denied", "/sys/energy_uj"), "Permission denied: /sys/energy_uj"),
        (OSError("odd"), "odd"),
        (KeyError(), "KeyError"),
    ],
)
def test_an_error_is_described_in_plain_words(error: Exception, reason: str) -> None:
    assert describe(error) == reason


# --- totals ------------------------------------------------------------------------------------------------------------

Raw = tuple[int, ...]


@pytest.mark.parametrize(
    ("ranges", "raw", "risen"),
    [
        ((2**32, 2**64), (10, 10, 15, 40), (0, 0, 5, 30)),
        ((2**32, 2**64), (2**32 - 6, 4, 10), (0, 10, 16)),
        ((2**32, 2**64), (2**64 - 6, 4, 10), (0, 10, 16)),
        ((2**32, 2**64), (2**32 - 6, 2**32 + 4), (0, 10)),  # a 64-bit counter passing 32 bits
        ((1000,), (990, 10, 100, 220, 990, 5), (0, 20, 110, 230, 1000, 1015)),  # twice round a range of its own
    ],
)
def test_a_counter_that_wraps_goes_on_rising(ranges: Raw, raw: Raw, risen: Raw) -> None:
    left = list(raw)
    rise = Rise(lambda: left.pop(0), ranges=ranges)
    assert tuple(rise() for _ in raw) == risen


@pytest.mark.parametrize("raw", [(2**40, 3), (2**31, 3), (2**63, 2**62), (500, 499)])
def test_a_counter_that_falls_without_wrapping_was_reset_and_says_so(raw: Raw) -> None:
    left = list(raw)
    rise = Rise(lambda: left.pop(0))
    assert rise() == 0
    with pytest.raises(ValueError, match=f"fell from {raw[0]} to {raw[1]}: it was reset"):
        rise()


def test_energy_is_the_area_under_the_power() -> None:
    """100 W rising to 200 W in 2 s, then 200 W for 1 s: 300 J + 200 J."""
    clock, power = FakeClock(), iter([100.0, 200.0, 200.0])
    energy = Integral(lambda: next(power), clock)
    totals = []
    for passed_s in (0.0, 2.0, 1.0):
        clock.now_s += passed_s
        totals.append(energy())
    assert totals == [0.0, 300.0, 500.0]


def test_a_costly_reading_is_taken_with_the_probe_the_first_sample_and_every_third() -> None:
    taken = iter(range(10))
    seldom = Seldom(lambda: float(next(taken)), every=3)
    assert [seldom() for _ in range(8)] == [0.0, 1.0, None, None, 2.0, None, None, 3.0]


# --- a sampler, beat by beat ---------------------------------------------------------------------------------------------


def test_samples_become_counters_with_the_times_of_their_clock() -> None:
    clock = FakeClock()
    sampler = Sampler(device(power=readings(0.0, 1.0, 2.0)), rank=2, clock=clock)
    sampler.tick()
    clock.now_s += 0.1
    sampler.tick()
    assert sampler.counters() == (Counter(rank=2, name="power", unit="W", points=((100.0, 1.0), (100.1, 2.0))),)


def test_a_metric_that_fails_in_mid_run_keeps_its_points_and_the_others_go_on() -> None:
    power, memory = readings(0.0, 1.0, 2.0, OSError("GPU is lost"), 9.0), readings(0.0, 5.0, 6.0, 7.0, 8.0)
    sampler = Sampler(device(power=power, memory=memory), rank=0)
    assert [sampler.tick() for _ in range(4)] == [True] * 4
    assert values(sampler) == {"power": [1.0, 2.0], "memory": [5.0, 6.0, 7.0, 8.0]}
    assert availability(sampler) == {"power": "unavailable (GPU is lost)", "memory": "available"}


def test_sampling_ends_when_no_metric_is_left() -> None:
    sampler = Sampler(device(power=readings(0.0, 1.0, OSError("GPU is lost"))), rank=0)
    assert [sampler.tick(), sampler.tick()] == [True, False]
    assert values(sampler) == {"power": [1.0]}


def test_a_metric_never_sampled_has_no_counter() -> None:
    sampler = Sampler(device(power=readings(OSError("no")), memory=lambda: 1.0, load=readings(None)), rank=0)
    sampler.tick()
    assert list(values(sampler)) == ["memory"]


class Faulty:
    """An observer that breaks its contract: the test sets what `sample` does."""

    def __init__(self, sample: Callable[[], dict[str, float]]) -> None:
        self.name = "faulty"
        self.metrics = (Metric(name="power", unit="W"), Metric(name="clock", unit="Hz", reason="not here"))
        self.sample = sample
        self.closed = False

    def close(self) -> None:
        self.closed = True
        raise OSError("cannot close")


def test_an_observer_that_breaks_costs_its_metrics_and_keeps_its_points() -> None:
    samples = iter([{"power": 1.0}])
    sampler = Sampler(Faulty(lambda: next(samples)), rank=0)
    assert [sampler.tick(), sampler.tick()] == [True, False]
    assert values(sampler) == {"power": [1.0]}
    assert availability(sampler) == {"power": "unavailable (StopIteration)", "clock": "unavailable (not here)"}


def test_a_sample_of_an_unannounced_metric_is_a_fault_of_the_observer() -> None:
    sampler = Sampler(Faulty(lambda: {"surprise": 1.0}), rank=0)
    assert not sampler.tick()
    assert availability(sampler)["power"] == "unavailable ('surprise')"


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, math.nan, math.inf, 1e6])
def test_a_rate_that_cannot_be_kept_is_refused(rate_hz: float) -> None:
    with pytest.raises(SpecError, match="use one above 0 and up to 1000"):
        Sampler(device(), rank=0, rate_hz=rate_hz)


@pytest.mark.parametrize(
    ("elapsed_s", "expected_s"),
    [
        (0.0, 1.0),
        (0.25, 0.75),
        (3.5, 0.5),  # beats at 1, 2 and 3 were missed: only the one at 4 is waited for
        (0.9, 1.1),  # too near to the beat to rest: the next but one
        (0.9999999, 1.0000001),  # a timer that woke early does not sample twice
    ],
)
def test_the_pause_lasts_until_the_next_beat_and_leaves_time_to_rest(elapsed_s: float, expected_s: float) -> None:
    assert pause_s(elapsed_s, 1.0) == pytest.approx(expected_s)


# --- the thread ----------------------------------------------------------------------------------------------------------


def test_a_thread_samples_at_the_start_and_at_the_stop_and_rests_between() -> None:
    opened = device(power=lambda: 1.0)
    with Sampler(opened, rank=0, rate_hz=0.1) as sampler:
        wait_for(lambda: len(sampler.counters()) == 1)
        time.sleep(0.05)
    started, stopped = sampler.counters()[0].points
    assert stopped[0] - started[0] >= 0.05
    assert not any(thread.name == "sample fake" for thread in threading.enumerate())


def test_a_thread_keeps_its_rate() -> None:
    with Sampler(device(power=lambda: 1.0), rank=0, rate_hz=100.0) as sampler:
        wait_for(lambda: bool(sampler.counters()) and len(sampler.counters()[0].points) >= 5)
    moments = [moment for moment, _ in sampler.counters()[0].points]
    assert len(moments) <= 2 + (moments[-1] - moments[0]) * 100.0


def test_a_thread_whose_observer_breaks_ends_without_a_sound() -> None:
    faulty = Faulty(lambda: {}["gone"])
    with Sampler(faulty, rank=0, rate_hz=100.0) as sampler:
        wait_for(lambda: not sampler.metrics[0].available)
    assert availability(sampler)["power"] == "unavailable ('gone')"
    assert faulty.closed


def test_a_driver_that_hangs_is_given_up_on_and_not_closed_in_mid_call() -> None:
    hanging, released = threading.Event(), threading.Event()

    def sample() -> dict[str, float]:
        hanging.set()
        released.wait(5)
        return {}

    faulty = Faulty(sample)
    sampler = Sampler(faulty, rank=0)
    sampler.start()
    assert hanging.wait(5)
    sampler.stop(timeout_s=0.02)
    assert availability(sampler)["power"] == "unavailable (no answer for 0.02 s)"
    assert not faulty.closed
    released.set()


def test_a_sampler_that_was_never_started_can_be_stopped() -> None:
    faulty = Faulty(dict)
    sampler = Sampler(faulty, rank=0)
    sampler.stop()
    assert faulty.closed
    assert sampler.counters() == ()


def wait_for(happened: Callable[[], bool]) -> None:
    """At most 5 s, in steps short enough not to slow the suite."""
    for _ in range(5000):
        if happened():
            return
        time.sleep(0.001)
    pytest.fail("waited for 5 s")
