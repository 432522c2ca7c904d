"""What came of `tests.benchmarks.schedules`, as tables of docs/schedules.md and as verdicts on what it must show."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

Rows = list[dict[str, Any]]
Verdicts = list[tuple[str, bool]]
_SAME = 1 + 1e-9


def periods_table(rows: Rows) -> str:
    lines = [
        f"| {row['shape']} | {row['devices']} | {row['period']:.4g} | {row['period_lower_bound']:.4g} "
        f"| {'yes' if row['proven'] else f'''no, gap {row['period'] / row['period_lower_bound'] - 1:.1%}'''} | {row['period_seconds']:.2f} s |"
        for row in rows
    ]
    return _table("shape | devices | period | lower bound | proven | found in", lines)


def periods_bars(rows: Rows) -> Verdicts:
    def of(devices: int) -> Rows:
        return [row for row in rows if row["devices"] == devices]

    work = {"V": 4, "X": 8, "K": 6, "M": 6, "NN": 8}
    found = [
        (
            f"4 devices, {row['shape']}: period {row['period']:g} proven in {row['period_seconds']:.2f} s (bar: {work[row['shape']]}, 1 s)",
            row["proven"] and row["period"] == work[row["shape"]] and row["period_seconds"] <= 1,
        )
        for row in of(4)
    ]
    found += [
        (
            f"8 devices, {row['shape']}: period {row['period']:g} proven in {row['period_seconds']:.2f} s (bar: 5 s)",
            row["proven"] and row["period_seconds"] <= 5,
        )
        for row in of(8)
    ]
    for row in (*of(16), *of(32)):
        gap = row["period"] / row["period_lower_bound"] - 1
        said = f"{row['devices']} devices, {row['shape']}: period {row['period']:g}, gap {gap:.1%}, {row['seconds']:.0f} s in all"
        found.append((f"{said} (bar: 60 s, V proven)", row["seconds"] <= 61 and (row["shape"] != "V" or row["proven"])))
    return found


def makespans_table(rows: Rows) -> str:
    lines = []
    for row in rows:
        name, least = min(row["portfolio"].items(), key=lambda item: item[1])
        lines.append(
            f"| {row['shape']} | {row['micro_batches']} | {row['makespan']:.6g} | {row['makespan_lower_bound']:.6g} "
            f"| {least:.6g} ({name}) | {row['tessel'] or ''} |"
        )
    return _table(
        "shape | micro-batches | makespan | lower bound | best without search | Tessel (external)",
        lines,
    )


def makespans_bars(rows: Rows) -> Verdicts:
    found = []
    for row in rows:
        least, tessel = min(row["portfolio"].values()), row["tessel"]
        said = f"{row['shape']}, {row['micro_batches']} micro-batches: {row['makespan']:g}, portfolio {least:g}"
        met = row["makespan"] <= least * _SAME and (tessel is None or row["makespan"] <= tessel)
        found.append((f"{said}, Tessel {tessel or 'unknown'}", met))
    return found


def realistic_table(rows: Rows) -> str:
    lines = []
    for row in rows:
        bubbles = " | ".join(
            "does not fit" if taken is None else f"{1 - row['busy'] / taken:.1%}" for taken in _compared(row)
        )
        gap = row["makespan"] / row["makespan_lower_bound"] - 1
        lines.append(
            f"| {row['workload']} | {row['stages']} | {row['micro_batches']} | {bubbles} "
            f"| {gap:.1%} | {row['winner']} | {row['seconds']:.0f} s |"
        )
    return _table(
        "model | stages | micro-batches | bubble: ours | zero-bubble | 1F1B | above the bound at most | by | searched",
        lines,
    )


def _compared(row: dict[str, Any]) -> list[float | None]:
    split = {name: s for name, s in row["portfolio"].items() if name.startswith("zero-bubble")}
    return [row["makespan"], min(split.values(), default=None), row["portfolio"].get("1f1b")]


def realistic_bars(rows: Rows) -> Verdicts:
    found = [
        (
            f"{row['workload']}, {row['stages']} stages: bubble {1 - row['busy'] / row['makespan']:.1%}, never above the portfolio",
            row["stages"] == row["devices"] and row["makespan"] <= min(row["portfolio"].values()) * _SAME,
        )
        for row in rows
    ]
    there = {(row["workload"], row["stages"]) for row in rows}
    wanted = {(name, stages) for name in ("gpt", "resnet") for stages in (8, 16, 32)}
    return [*found, (f"all of gpt and resnet in 8, 16 and 32 stages ({len(there & wanted)} of 6)", wanted <= there)]


def inference_table(rows: Rows) -> str:
    lines = [
        f"| {row['shape']} | {row['devices']} | {row['micro_batches']} | {row['makespan']:.6g} | {row['makespan_lower_bound']:.6g} "
        f"| {row['portfolio']['oldest first']:.6g} | {row['portfolio']['one by one']:.6g} |"
        for row in rows
    ]
    return _table(
        "shape | devices | micro-batches | latency | lower bound | oldest first, as 1F1B | one by one",
        lines,
    )


def inference_bars(rows: Rows) -> Verdicts:
    def said(row: dict[str, Any]) -> str:
        one_by_one = 1 - row["makespan"] / row["portfolio"]["one by one"]
        return f"{row['shape']} on {row['devices']}, {row['micro_batches']}: latency {row['makespan']:g}, {one_by_one:.0%} below one by one"

    return [(f"{said(row)}, proven", row["makespan"] <= row["makespan_lower_bound"] * _SAME) for row in rows]


def random_table(rows: Rows) -> str:
    wins = Counter("searched" if row["makespan"] < row["portfolio"] / _SAME else "as the best member" for row in rows)
    gains = [1 - row["makespan"] / row["portfolio"] for row in rows]
    gaps = [row["makespan"] / row["makespan_lower_bound"] - 1 for row in rows]
    line = (
        f"| {len(rows)} | {sum(row['makespan'] > row['portfolio'] * _SAME for row in rows)} | {wins['searched']} "
        f"| {median(gains):.1%} | {max(gains):.1%} | {median(gaps):.1%} | {max(gaps):.1%} |"
    )
    return _table(
        "problems | above the portfolio | shorter | by, median | by, most | above the bound, median | at most",
        [line],
    )


def random_bars(rows: Rows) -> Verdicts:
    worse = sum(row["makespan"] > row["portfolio"] * _SAME for row in rows)
    return [(f"{len(rows)} random problems: {worse} above the best of the portfolio", worse == 0 and len(rows) >= 200)]


def small_table(rows: Rows) -> str:
    right = sum(abs(row["makespan"] - row["optimum"]) <= 1e-6 * row["optimum"] for row in rows)
    proven = sum(row["makespan"] <= row["makespan_lower_bound"] * _SAME for row in rows)
    slowest = max(row["seconds"] for row in rows)
    line = f"| {len(rows)} | {right} | {proven} | {median(row['seconds'] for row in rows):.2f} s | {slowest:.1f} s |"
    return _table("problems | equal to the optimum by brute force | proven so | searched, median | at most", [line])


def small_bars(rows: Rows) -> Verdicts:
    right = sum(abs(row["makespan"] - row["optimum"]) <= 1e-6 * row["optimum"] for row in rows)
    return [(f"{right} of {len(rows)} small problems equal to brute force", right == len(rows) and len(rows) >= 100)]


def _table(head: str, lines: list[str]) -> str:
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|---" * columns + "|", *lines])
