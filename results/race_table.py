"""The published races as tables: `python -m results.race_table README.md docs/race.md` after `nox -s race`.

The tables go into the first file, and what was measured in the cells that we do not win into the second.
"""

from __future__ import annotations

import sys
from pathlib import Path

from results.published_table import FOLDER, put_between
from results.race import Place, Race, places, why_no_faster
from results.record import AGAIN
from results.stats import Ratio
from results.store import read_json
from results.units import MISSING, format_interval, format_percent, format_rate, format_times

RACES = FOLDER / "race"
BEGIN, END = "<!-- race -->", "<!-- /race -->"


def races(folder: Path = RACES) -> list[Race]:
    """Those in the lab first, then by mix and workload."""
    found = [read_json(Race, path) for path in folder.glob("*.json")]
    return sorted(found, key=lambda race: (not race.cluster.in_lab, race.cluster.name, race.workload.name))


def tables(found: list[Race]) -> str:
    """Speeds, and what they cost."""
    return f"{_speeds(found)}\n\n{_costs(found)}"


def explanations(found: list[Race]) -> str:
    """The cells that we do not win, and what was measured there."""
    lines = [f"- {race.workload.name} on {race.cluster.name}: {text}" for race in found for text in why_no_faster(race)]
    return "\n".join(lines) or "None: every cell is a win."


def _speeds(found: list[Race]) -> str:
    names = [entrant.name for entrant in found[0].entrants if not entrant.name.endswith(AGAIN)]
    lines = [_row(["workload", "mix", "label", *names]), _row(["---"] * (3 + len(names)))]
    for race in found:
        by_name = {place.name: place for place in places(race)}
        cells = [_speed(by_name[name]) if name in by_name else "does not fit" for name in names]
        lines.append(_row([*_cell_of(race), *cells]))
    return "\n".join(lines)


def _speed(place: Place) -> str:
    rate = format_rate(place.samples_per_s)
    speed = (
        f"{rate}/s" if place.vs_peer is None else f"{format_times(place.vs_peer.value)} ({_interval(place.vs_peer)})"
    )
    limit = "" if place.fraction_of_limit is None else f", {format_percent(place.fraction_of_limit)}"
    bold = place.is_ours and place.vs_kind is not None and place.vs_kind.verdict == "faster"
    return f"**{speed}**{limit}" if bold else f"{speed}{limit}"


def _costs(found: list[Race]) -> str:
    names = [entrant.name for entrant in found[0].entrants if not entrant.name.endswith(AGAIN)]
    lines = [_row(["workload", "mix", *names]), _row(["---"] * (2 + len(names)))]
    for race in found:
        by_name = {place.name: place for place in places(race)}
        cells = [_cost(by_name[name]) if name in by_name else MISSING for name in names]
        lines.append(_row([*_cell_of(race)[:2], *cells]))
    return "\n".join(lines)


def _cost(place: Place) -> str:
    steps = MISSING if place.tuning_steps == 0 else place.steps_to_near_best or f"never in {place.tuning_steps}"
    return f"{place.cpu_s_per_step:.3f}; {steps}"


def _cell_of(race: Race) -> list[str]:
    return [race.workload.name, race.cluster.name, race.cluster.label]


def _interval(ratio: Ratio) -> str:
    return format_interval(ratio.low, ratio.high)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |" if cells[0] != "---" else f"|{'|'.join(cells)}|"


if __name__ == "__main__":
    put_between(Path(sys.argv[1]), BEGIN, END, tables(races()))
    put_between(Path(sys.argv[2]), BEGIN, END, explanations(races()))
