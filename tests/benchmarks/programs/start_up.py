"""Run by mpirun: the start of a job on this many ranks, up to its first all-reduce; rank 0 prints what it took, as JSON.

mpirun -n N python tests/benchmarks/programs/start_up.py
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from autotune.jobs.context import set_up
from autotune.jobs.job import SweepJob
from autotune.runtime.control.start import start_control
from autotune.workloads.cluster import load_cluster

begun_s = time.monotonic()
control = start_control()
network = control.network()
opened_s = time.monotonic()
sent_to_open = control.num_sent + 3 * (control.rank > 0)  # the proof of a connection is three messages
cluster = load_cluster("this-machine").for_ranks(control.size)
job = SweepJob(workload="mlp-tiny", clusters=("this-machine",), results=Path())
context = set_up(job, cluster, control)
ready_s = time.monotonic()
sent_to_be_ready = control.num_sent + 3 * (control.rank > 0) + network.num_sent
with context.groups.open("gloo", timeout_s=120.0) as group:
    group.allreduce([torch.ones(1000)], dist.AllreduceOptions()).wait()
    control.share(None)
    reduced_s = time.monotonic()
    num_files = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
    sent = control.num_sent + 3 * (control.rank > 0) + network.num_sent
    del group
own = [sent_to_open, sent_to_be_ready, sent, sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), num_files]
found = control.gather(own)
if found is not None:
    open_messages, ready_messages, messages, cpu_s, _ = (sum(column) for column in zip(*found, strict=True))
    row = {
        "ranks": control.size,
        "messages_to_open_network": open_messages,
        "messages_to_set_up": ready_messages,
        "messages_to_first_all_reduce": messages,
        "messages_of_rank_0": found[0][2],
        "network_s": opened_s - begun_s,
        "set_up_s": ready_s - opened_s,
        "first_group_s": reduced_s - ready_s,
        "cpu_s_per_rank": cpu_s / control.size,
        "open_files_of_rank_0": found[0][4],
    }
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()
context.runner.close()
control.leave()
