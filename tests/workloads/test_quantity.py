"""Quantities: what people write is read in SI units, and what could mean anything is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.quantity import (
    BYTES,
    BYTES_PER_S,
    FLOPS_PER_S,
    SECONDS,
    format_bandwidth,
    format_bytes,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "units", "expected"),
    [
        ("1 Gbit/s", BYTES_PER_S, 125e6),
        ("200 Mbit/s", BYTES_PER_S, 25e6),
        ("8 bit/s", BYTES_PER_S, 1.0),
        ("2.4 GB/s", BYTES_PER_S, 2.4e9),
        ("1 MiB/s", BYTES_PER_S, 2.0**20),
        ("8 GiB", BYTES, 2.0**33),
        ("1 kB", BYTES, 1e3),
        ("1 KiB", BYTES, 1024.0),
        ("12 B", BYTES, 12.0),
        ("0.6 GFLOP/s", FLOPS_PER_S, 0.6e9),
        ("312 TFLOP/s", FLOPS_PER_S, 312e12),
        ("50 us", SECONDS, 50e-6),
        ("50 µs", SECONDS, 50e-6),
        ("0.1 ms", SECONDS, 1e-4),
        ("3 s", SECONDS, 3.0),
        ("  7ns ", SECONDS, 7e-9),
        (".5 s", SECONDS, 0.5),
        ("1e-3 s", SECONDS, 1e-3),
    ],
)
def test_a_quantity_is_read_in_si_units(text: str, units: Mapping[str, float], expected: float) -> None:
    assert parse_quantity(text, units, "here") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "value", [5, 5.0, "5", "GiB", "", "5 parsecs", "5 gib", "5 G iB", "five B", None, True, ["5 B"]]
)
def test_a_value_without_a_known_unit_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(SpecError) as caught:
        parse_quantity(value, BYTES, "mine.toml memory")
    assert str(caught.value).startswith(f"mine.toml memory is {value!r}: write a number and a unit in quotes, such as")


def test_a_unit_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="write a number and a unit"):
        parse_quantity("1 GiB", BYTES_PER_S, "here")


@pytest.mark.parametrize("text", ["0 B", "-1 GiB"])
def test_nothing_and_less_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="it must be above zero"):
        parse_quantity(text, BYTES, "here")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (25 * 2**20, "25 MiB"), (2**30, "1 GiB"), (2**41, "2 TiB")],
)
def test_bytes_are_shown_in_binary_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize("text", ["512 B", "1.5 KiB", "25 MiB", "1 GiB", "2 TiB"])
def test_what_is_shown_can_be_written_in_a_cluster_file(text: str) -> None:
    assert format_bytes(parse_quantity(text, BYTES, "here")) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(125e6, "1 Gbit/s"), (25e6, "200 Mbit/s"), (1250, "10 kbit/s"), (1, "8 bit/s"), (125e9, "1000 Gbit/s")],
)
def test_bandwidth_is_shown_in_bits(bytes_per_s: float, text: str) -> None:
    assert format_bandwidth(bytes_per_s) == text
