"""The tables of docs/scheduling.md from what is published: `python -m tests.benchmarks.engine_tables`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.benchmarks.equality import JOBS
from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "results" / "published"
PAGE = ROOT / "docs" / "scheduling.md"


def read(path: str) -> Any:
    file = PUBLISHED / path
    return json.loads(file.read_text()) if file.exists() else None


def equality(found: Any) -> str:
    rows = [
        f"| {dtype} | {ranks} | {len(cases)} | {max(case['error'] for case in cases):.1e} "
        f"| {f'''{max(case['order'] for case in cases):.1e}''' if dtype == 'float32' else ''} |"
        for dtype in ("float64", "float32")
        for ranks in (2, 4)
        if (cases := [case for case in found["cases"] if (case["dtype"], case["ranks"]) == (dtype, ranks)])
    ]
    head = "| type | ranks | cases | largest distance to plain training | largest distance of two plain trainings that round differently |"
    lines = [head, "|---|---|---|---|---|", *rows, "", "The bar is 1e-10 in float64."]
    if any(case["dtype"] == "float32" for case in found["cases"]):
        lines.append(f"In float32 the largest ratio of the two is {found['worst']['float32']:.2g} (bar: 3).")
    if missing := unmeasured(found["cases"]):
        lines.append(f"Still to be run (`nox -s equality -- again`): {'; '.join(missing)}.")
    return "\n".join(lines)


def unmeasured(cases: list[dict[str, Any]]) -> list[str]:
    """Jobs whose cases are not there."""
    done = {(case["ranks"], case["dtype"], case["model"]) for case in cases}
    return [f"{model}, {dtype}, {ranks} ranks" for ranks, dtype, model in JOBS if (ranks, dtype, model) not in done]


def overhead(found: Any, part: Any) -> str:
    rows = [
        f"| {workload} | {one['contender']} | {one['against']} | {one['throughput']:.3f}x ({one['low']:.3f}-{one['high']:.3f}) "
        f"| {1000 * one['step_s']:.1f} ms | {one['cpu_s_per_step']:.3f}, {one['cpu_s_per_step_against']:.3f} |"
        for workload, pairs in found["workloads"].items()
        for one in pairs
    ]
    head = "| workload | | against | throughput | step | CPU-s per step, both |"
    text = "\n".join([head, "|---|---|---|---|---|---|", *rows])
    if part is not None:
        times = [1e6 * one["extra_info"]["processor_s_per_part"] for one in part["benchmarks"]]
        text += f"\n\nCPU time of rank 0 per partition, transport excluded: {min(times):.0f} to {max(times):.0f} µs (limit: 50 µs)."
    return text


def uneven(found: Any) -> str:
    rows = [f"| gloo's ring | {found['ring']['median_s']:.2f} s | {found['ring']['over_bound']:.2f} | |"]
    for name, one in found.items():
        if name.startswith("shards of"):
            faster = one["times_faster_than_ring"]
            ratio = f"{faster['value']:.2f}x ({faster['low']:.2f}-{faster['high']:.2f})"
            rows.append(f"| {name} | {one['median_s']:.2f} s | {one['over_bound']:.2f} | {ratio} |")
    head = f"| all-reduce of {found['num_bytes'] / 1e6:.0f} MB | median | times the bound of {found['bound_s']:.1f} s | times faster than the ring |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def main() -> None:
    if (found := read("equality/equality.json")) is not None:
        put_between(PAGE, "<!-- equality -->", "<!-- /equality -->", equality(found))
    if (found := read("engine-overhead/this-machine.json")) is not None:
        text = overhead(found, read("engine-overhead/part.json"))
        put_between(PAGE, "<!-- overhead -->", "<!-- /overhead -->", text)
    if (found := read("uneven-links/slow-link4.json")) is not None:
        put_between(PAGE, "<!-- uneven -->", "<!-- /uneven -->", uneven(found))


if __name__ == "__main__":
    main()
