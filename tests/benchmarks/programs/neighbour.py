"""A noisy neighbour: bursts of work on one core at random moments, until its parent ends."""

from __future__ import annotations

import os
import random
import sys
import time

BUSY_S, IDLE_S = (0.02, 1.5), (0.02, 1.5)


def main(seed: int) -> None:
    generator, parent = random.Random(seed), os.getppid()
    while os.getppid() == parent:
        until = time.monotonic() + generator.uniform(*BUSY_S)
        while time.monotonic() < until:
            sum(range(1000))
        time.sleep(generator.uniform(*IDLE_S))


if __name__ == "__main__":
    main(int(sys.argv[1]))
