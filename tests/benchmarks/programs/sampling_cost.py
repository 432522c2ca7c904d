"""What sampling costs the processor: `python sampling_cost.py SECONDS UUID...`, each GPU in a thread of its own at 10 Hz.

Prints {"seconds", "threads_s", "process_s", "num_samples"} as JSON: CPU time of each sampling thread and of the
whole process, whose main thread only sleeps. The kernel's share of a call is in both.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack

from autotune.profilers.nvml import UNITS, open_nvml
from autotune.profilers.observer import Sampler

LEAD_IN_S = 0.5
"""Looking up functions costs once, at the first sample."""

seconds = float(sys.argv[1])
with ExitStack() as running:
    samplers = [running.enter_context(Sampler(open_nvml(uuid), rank=rank)) for rank, uuid in enumerate(sys.argv[2:])]
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("sample ")]
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident is not None]
    time.sleep(LEAD_IN_S)
    begun_s, process_s = time.monotonic(), time.process_time()
    threads_s = [time.clock_gettime(clock) for clock in clocks]
    time.sleep(seconds)
    taken = {
        "seconds": time.monotonic() - begun_s,
        "threads_s": [time.clock_gettime(clock) - since for clock, since in zip(clocks, threads_s, strict=True)],
        "process_s": time.process_time() - process_s,
    }
counters = [sampler.counters() for sampler in samplers]
assert all({counter.name for counter in of_gpu} == set(UNITS) for of_gpu in counters), "a metric was not sampled"
print(json.dumps(taken | {"num_samples": [len(of_gpu[0].points) for of_gpu in counters]}))
