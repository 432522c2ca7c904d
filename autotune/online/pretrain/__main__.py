"""Train the meta-network on simulated jobs, grade it on held-out models and networks, and write weights and card.

`python -m autotune.online.pretrain` writes `meta.safetensors` and `meta.json` to `autotune/online/weights` (15 minutes).
`--again` grades the weights that are there and writes the card. Simulated jobs are kept below the results folder.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from autotune.online.features import CANDIDATE_FEATURES, FEATURES_VERSION, WINDOW_FEATURES
from autotune.online.learning import pretrain
from autotune.online.meta_network import CARD, HIDDEN, NUM_HEADS, SHIPPED, MetaNetwork, features_card
from autotune.online.pretrain.cases import Settings, training_data
from autotune.online.pretrain.grading import Grades, grade
from autotune.online.pretrain.random_models import HELD_OUT_MODELS
from autotune.results.store.command_line import default_results
from autotune.results.store.store import write_json

WEIGHTS = Path(__file__).parents[1] / "weights"
KEPT_FOLDER = "meta-network"


def make_weights(settings: Settings, folder: Path, *, again: bool = False) -> None:
    """Train or read the weights in a folder, grade them, and write their card."""
    folder.mkdir(parents=True, exist_ok=True)
    if again:
        content = (folder / SHIPPED).read_bytes()
        network = MetaNetwork.of_bytes(content, str(folder / SHIPPED))
        num_cases = json.loads((folder / CARD).read_text(encoding="utf-8"))["data"]["cases"]
    else:
        data = training_data(settings, _report)
        num_cases = len(data.measured)
        _report(f"training on {num_cases} cases")
        network = pretrain(data, seed=settings.seed, epochs=settings.epochs)
        (folder / SHIPPED).write_bytes(network.to_bytes())
    write_json(folder / CARD, card(settings, grade(network, settings, _report), num_cases))


def card(settings: Settings, grades: dict[str, dict[str, Grades]], num_cases: int) -> dict[str, Any]:
    """What the weights predict, what they were trained on, and their grades."""
    return {
        "what": "log(throughput of a candidate / throughput of the plan that runs), from a window of steps",
        "label": "simulated",
        "features": features_card(),
        "features_version": FEATURES_VERSION,
        "window_features": list(WINDOW_FEATURES),
        "candidate_features": list(CANDIDATE_FEATURES),
        "heads": NUM_HEADS,
        "hidden": HIDDEN,
        "data": {
            "runs": settings.num_jobs,
            "cases": num_cases,
            "held_out_models": list(HELD_OUT_MODELS),
            "held_out_networks": "links of 200-400 Mbit/s and 4-8 Gbit/s, 5 and 7 ranks",
            "graded_windows_per_cell": settings.graded_jobs,
            "graded_candidates_per_window": settings.graded_tried,
        },
        "training": {"epochs": settings.epochs, "seed": settings.seed},
        "grades": grades,
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "command": "nox -s pretrain",
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the shipped weights."""
    parser = argparse.ArgumentParser(prog="python -m autotune.online.pretrain", description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="grade the weights that are there, without training")
    parser.add_argument("--results", type=Path, help="results folder (default: $AUTOTUNE_RESULTS or results/data)")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the weights and their card")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kept = (options.results or default_results()) / KEPT_FOLDER
    make_weights(Settings(kept=kept), options.weights, again=options.again)


def _report(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
