"""What pytest-benchmark found of the simulator, kept in short: `python -m tests.benchmarks.simulator_speed FILE.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from autotune.results.store.environment import describe_environment
from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "published" / "benchmarks" / "simulator.json"
PAGE = ROOT / "docs" / "simulator.md"


def table(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        f"| {one['num_tasks']:,} tasks, plans a second | {one['plans_per_s']:,.0f} | {one['bar']:,} |"
        for name, one in found.items()
        if name.startswith("test_plans_per_second")
    ]
    growth, large = found["test_time_grows_no_faster_than_n_log_n"], found["test_a_step_on_1024_devices"]
    sizes = [f"{1000 * growth[count]:.3g}" for count in ("10000", "100000", "1000000")]
    trees = [one for name, one in found.items() if name.startswith("test_plans_on_a_tree")]
    rows += [f"| 1,024 devices in 128 hosts of 8, {one['kind']} | {one['median_s']:.2g} s | 2 s |" for one in trees]
    rows += [
        f"| 10⁴, 10⁵, 10⁶ tasks, ms | {', '.join(sizes)} | n log n within a factor of 2 |",
        f"| `gpt` on 1,024 devices, {large['tasks']:,} tasks | {large['seconds']:.2g} s, {large['bytes'] / 2**30:.2f} GiB | 10 s, 2 GiB |",
    ]
    return "\n".join(["| | measured | bar |", "|---|---|---|", *rows])


def main(path: Path) -> None:
    found = {
        one["name"]: {
            "min_s": one["stats"]["min"],
            "median_s": one["stats"]["median"],
            "rounds": one["stats"]["rounds"],
            **one["extra_info"],
        }
        for one in json.loads(path.read_text())["benchmarks"]
    }
    document = {
        "command": "nox -s simulator_speed",
        "label": "measured on this machine",
        "environment": describe_environment(),
        "benchmarks": found,
    }
    KEPT.write_text(json.dumps(document, indent=1) + "\n")
    put_between(PAGE, "<!-- speed -->", "<!-- /speed -->", table(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
