"""The published races as tables: `python -m tests.benchmarks.race_table docs/race.md` after `nox -s race`.

Three parts: the sizes of the models, speeds and costs, and what was measured in the cells that we do not win.
"""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.results.judge.race import Place, Race, places, read_race, why_no_faster
from autotune.results.judge.stats import Ratio
from autotune.results.store.record import AGAIN
from autotune.results.text.numbers import MISSING, format_interval, format_percent, format_rate, format_times
from tests.benchmarks.published_table import FOLDER, SIZES_BEGIN, SIZES_END, put_between, sizes_table

RACES = FOLDER / "race"
BEGIN, END = "<!-- race -->", "<!-- /race -->"
NO_WIN_BEGIN, NO_WIN_END = "<!-- no-win -->", "<!-- /no-win -->"


def races(folder: Path = RACES) -> list[Race]:
    """Those in the lab first, then by cluster and workload."""
    found = [read_race(path) for path in folder.glob("*.json")]
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
    lines = [_row(["workload", "cluster", "label", *names]), _row(["---"] * (3 + len(names)))]
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
    lines = [_row(["workload", "cluster", *names]), _row(["---"] * (2 + len(names)))]
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


def write(page: Path, folder: Path = RACES) -> None:
    """All parts, into the page."""
    found = races(folder)
    put_between(page, SIZES_BEGIN, SIZES_END, sizes_table(_trained(race) for race in found))
    put_between(page, BEGIN, END, tables(found))
    put_between(page, NO_WIN_BEGIN, NO_WIN_END, explanations(found))


def _trained(race: Race) -> tuple[str, int]:
    options = "".join(f",{name}={value}" for name, value in race.workload.options.items())
    return race.workload.name + options, race.workload.global_batch


if __name__ == "__main__":
    write(Path(sys.argv[1] if sys.argv[1:] else "docs/race.md"))
