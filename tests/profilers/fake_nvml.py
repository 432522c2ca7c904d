"""A fake of NVIDIA's library with two GPUs, written in C; pynvml's own loader finds it on LD_LIBRARY_PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FIRST, SECOND = (f"{letter * 8}-0000-0000-0000-000000000000" for letter in "ab")
"""UUIDs of the two, as torch gives them."""

LIBRARY = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NOT_SUPPORTED 3
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define LOST 15

/* Two GPUs; every sample begins with the utilisation, which counts it. The first has an energy counter about to wrap; the
   second lacks some metrics unless FAKE_ALIKE is set. */
struct gpu { const char *uuid; int first; unsigned samples; unsigned long long energy_mj, link_kib; };
static struct gpu gpus[2] = {{"GPU-aaaaaaaa-0000-0000-0000-000000000000", 1, 0, -5000ull, 0},
                             {"GPU-bbbbbbbb-0000-0000-0000-000000000000", 0, 0, 0, 0}};
struct field { unsigned id, scope; long long moment, latency; unsigned type, code; unsigned long long value; };

static int setting(const char *name, int otherwise) { const char *s = getenv(name); return s ? atoi(s) : otherwise; }
static int full(struct gpu *g) { return g->first || setting("FAKE_ALIKE", 0); }
static int state(struct gpu *g) { return g->first && g->samples > setting("FAKE_LOST_AFTER", 1 << 30) ? LOST : 0; }

int nvmlInitWithFlags(unsigned flags) { return setting("FAKE_INIT", 0); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = setting("FAKE_COUNT", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct gpu **out) { *out = &gpus[i]; return 0; }
int nvmlDeviceGetUUID(struct gpu *g, char *out, unsigned size) { strncpy(out, g->uuid, size); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **out) {
  for (int i = 0; i < setting("FAKE_COUNT", 2); i++)
    if (!strcmp(uuid, gpus[i].uuid)) { *out = &gpus[i]; return 0; }
  return NOT_FOUND;
}
int nvmlDeviceGetUtilizationRates(struct gpu *g, unsigned *out) {
  g->samples++; out[0] = g->samples % 100; out[1] = 0; return state(g);
}
int nvmlDeviceGetMemoryInfo(struct gpu *g, unsigned long long *out) {
  out[0] = 1ull << 34; out[2] = g->samples << 20; out[1] = out[0] - out[2]; return state(g);
}
int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *mw) { *mw = 100000 + 1000 * g->samples; return state(g); }
int nvmlDeviceGetTotalEnergyConsumption(struct gpu *g, unsigned long long *mj) {
  if (!full(g)) return NOT_SUPPORTED;
  *mj = g->energy_mj += 2000; return state(g);
}
int nvmlDeviceGetClockInfo(struct gpu *g, unsigned which, unsigned *mhz) {
  *mhz = 1000 * which + g->samples; return full(g) ? state(g) : NOT_SUPPORTED;
}
/* An older driver: no nvmlDeviceGetCurrentClocksEventReasons. */
int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *g, unsigned long long *bits) { *bits = 4; return state(g); }
int nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *up) {
  *up = link == 1; return !full(g) ? NOT_SUPPORTED : link < 2 ? state(g) : INVALID_ARGUMENT;
}
int nvmlDeviceGetFieldValues(struct gpu *g, int n, struct field *f) {
  for (int i = 0; i < n; i++) { f[i].code = 0; f[i].value = f[i].scope == -1u ? g->link_kib++ : 0; }
  return state(g);
}
/* The real one takes 20 ms; here it is taken to sleep meanwhile. */
int nvmlDeviceGetPcieThroughput(struct gpu *g, unsigned which, unsigned *kb_s) {
  usleep(setting("FAKE_PCIE_US", 0)); *kb_s = 10 + which; return state(g);
}
"""


def build_library(folder: Path) -> Path:
    """Put a libnvidia-ml.so.1 into the folder; without a compiler, skip the test."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("needs a C compiler (cc or gcc) to make a fake of NVIDIA's library")
    (folder / "nvml.c").write_text(LIBRARY)
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, folder / "nvml.c"], check=True, timeout=60)
    return folder
