"""How often the host waits for an accelerator in a training step, counted on the fake one.

    python -m tests.benchmarks.host_waits

Per plan and per way for tensors to travel: a model in one fusion buffer, the same model in many. A wait of the thread that
trains holds up the launch of what follows, so its number may depend on neither buffers nor parameters. Threads of ours wait
for single transfers, which holds up nothing. Two ranks as threads; the difference between eight steps and four.

`again`: write the table of docs/gpus.md from the kept counts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.results.store.environment import describe_environment
from autotune.results.store.store import write_json
from autotune.workloads.plan import Plan
from tests.accelerator import devices, jobs
from tests.accelerator.test_trainers import is_allowed, plan_of
from tests.benchmarks.published_table import put_between

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "published" / "accelerator" / "host-waits.json"
PAGE = ROOT / "docs" / "gpus.md"
ONE_BUFFER_BYTES, MANY_BUFFERS_BYTES = 1 << 24, 2048
MOST_WAITS = 6
"""Per step, of the thread that trains."""
MODELS = ("mlp", "gpt")
"""The first with every codec."""
CASES = {
    "ddp": ("none", "fp16"),
    "bucketed": ("none", "fp16", "bf16"),
    "scheduled": ("none", "fp16", "int8", "topk", "powersgd", "factors"),
    "overlap": ("none", "fp16", "int8", "topk", "powersgd", "factors"),
}


def measure(job: Any, plan: Plan, over: str) -> dict[str, Any]:
    """Waits per step and rank with one buffer and with many."""
    found = {}
    for name, num_bytes in (("one_buffer", ONE_BUFFER_BYTES), ("many_buffers", MANY_BUFFERS_BYTES)):
        comm = replace(plan.comm, bucket_bytes=num_bytes, partition_bytes=num_bytes, credit_bytes=4 * num_bytes)
        waits = jobs.waits_per_step(job, replace(plan, comm=comm), over)
        found[name] = {
            "training": round(waits.pop("training"), 2),
            "other_threads": {thread: round(number, 2) for thread, number in sorted(waits.items())},
        }
    return found


def table(document: dict[str, Any]) -> str:
    """A line for each model and reducer: the most waits of any codec."""
    lines = [
        "| model (parameter tensors) | reducer | codecs | staged: one buffer, many | NCCL's like: one buffer, many |",
        "|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in document["waits"]:
        groups.setdefault((row["model"], row["parameters"], row["reducer"]), []).append(row)
    for (model, number, reducer), rows in groups.items():
        codecs = ", ".join(dict.fromkeys(row["codec"] for row in rows))
        waits = [
            ", ".join(
                f"{max(row[buffers]['training'] for row in rows if row['over'] == over):g}"
                for buffers in ("one_buffer", "many_buffers")
            )
            for over in (jobs.STAGED, jobs.NCCL)
        ]
        lines.append(f"| {model} ({number}) | {reducer} | {codecs} | {' | '.join(waits)} |")
    return "\n".join(lines)


def main() -> int:
    if "again" not in sys.argv[1:]:
        count()
    document = json.loads(KEPT.read_text(encoding="utf-8"))
    put_between(PAGE, "<!-- host-waits -->", "<!-- /host-waits -->", table(document))
    sys.stdout.write(json.dumps({key: document[key] for key in ("most_waits", "is_met")}) + "\n")
    return 0 if document["is_met"] else 1


def count() -> None:
    """Count all cases and keep what was found."""
    rows: list[dict[str, Any]] = []
    devices.set_count(2)
    for model in MODELS:
        job = jobs.workload(model)
        num_parameters = sum(1 for _ in job.model().parameters())
        for reducer, codecs in CASES.items():
            for codec in codecs if model == MODELS[0] else ("none",):
                plan = plan_of(job, reducer, codec)
                if not is_allowed(plan):
                    continue
                for over in (jobs.STAGED, jobs.NCCL):
                    row = {
                        "model": model,
                        "parameters": num_parameters,
                        "reducer": reducer,
                        "codec": codec,
                        "over": over,
                    }
                    rows.append(row | measure(job, plan, over))
                    few, many = (rows[-1][name]["training"] for name in ("one_buffer", "many_buffers"))
                    sys.stdout.write(f"{model:8} {reducer:10} {codec:9} {over:10} {few:5} {many:5}\n")
    is_met = all(row["many_buffers"]["training"] <= max(row["one_buffer"]["training"], 2) <= MOST_WAITS for row in rows)
    document = {
        "command": "nox -s host_waits",
        "label": "emulated: counted on a fake accelerator",
        "environment": describe_environment(),
        "waits": rows,
        "most_waits": max(row["many_buffers"]["training"] for row in rows),
        "is_met": is_met,
    }
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    write_json(KEPT, document)


if __name__ == "__main__":
    raise SystemExit(main())
