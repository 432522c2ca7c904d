"""The stated error of predicted ratios is that of the published predictions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np

from autotune.results.store.advice import RATIO_ERROR

PAIRS = Path(__file__).parents[3] / "results" / "published" / "prediction" / "pairs.json"


def test_nine_of_ten_published_ratios_are_within_the_stated_error():
    published = json.loads(PAIRS.read_text())["pairs"]
    errors = [
        abs(one["predicted_s"] / other["predicted_s"] * other["measured_s"] / one["measured_s"] - 1)
        for pairs in published.values()
        for one, other in itertools.combinations(pairs, 2)
        if one["workload"] == other["workload"] and one["cluster"] != other["cluster"]
    ]
    assert len(errors) > 1000
    assert abs(np.percentile(errors, 90) - RATIO_ERROR) < 5e-4
