"""Run by mpirun: the verdicts of the quality guard on good and bad settings; one JSON line each from rank 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from autotune.jobs.context import set_up
from autotune.jobs.job import Job, check_job
from autotune.jobs.quality import judge
from autotune.runtime.control.start import start_control
from autotune.runtime.trial.workers import follow
from autotune.workloads.plan import CommPlan, CompressionPlan

control = start_control()
job = Job(workload="digits", clusters=("this-machine",), results=Path(sys.argv[1]))
(cluster,) = check_job(job, control.size)
context = set_up(job, cluster, control)
if control.is_leader:
    averaged = CommPlan(reducer="averaged", average_every=2)
    cases = {
        "fp16": judge(context, CompressionPlan(codec="fp16"), timeout_s=60),
        "int8": judge(context, CompressionPlan(codec="int8"), timeout_s=60),
        "almost nothing": judge(context, CompressionPlan(codec="topk", top_share=1e-4), timeout_s=60),
        "averaged": judge(context, CompressionPlan(), averaged, timeout_s=60),
    }
    for name, quality in cases.items():
        case = {"name": name, "holds": quality.holds, "cosine": quality.cosine, "lost": quality.lost}
        sys.stdout.write(json.dumps(case | {"text": str(quality)}) + "\n")
    context.workers.dismiss()
else:
    follow(control, context.runner)
