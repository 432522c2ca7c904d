"""Everything that a plan or a search may choose from, with one line each: read from the registries, for documentation."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.search.methods import METHODS
from autotune.space import space as _registers_the_knobs  # noqa: F401
from autotune.space import split_points
from autotune.space.knob import KNOBS
from autotune.workloads.plan import CODECS, COLLECTIVES, TRANSPORTS, Priority, ReducerKind


def all_choices() -> dict[str, dict[str, str]]:
    """By title: names and what they are."""
    return {
        "knobs of a search": {"log_share": split_points.TEXT} | {knob.name: knob.text for knob in KNOBS.values()},
        "reducers": {str(word): word.text for word in ReducerKind},
        "priorities": {str(word): word.text for word in Priority},
        "codecs": {codec.name: _with(codec.text, _codec_notes(codec.name)) for codec in CODECS.values()},
        "transports": {transport.name: transport.text for transport in TRANSPORTS.values()},
        "collectives": {collective.name: collective.text for collective in COLLECTIVES.values()},
        "search methods": {method.name: _with(method.text, _uses(method.name)) for method in METHODS.values()},
    }


def as_markdown() -> str:
    """The page docs/choices.md."""
    lines = [
        "# Choices",
        "",
        "What a plan or a search may choose from (`autotune choices --markdown` writes this page).",
    ]
    for title, choices in all_choices().items():
        lines += ["", f"## {title.capitalize()}", "", "| name | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in choices.items()]
    return "\n".join(lines) + "\n"


def _with(text: str, notes: Iterable[str]) -> str:
    more = ", ".join(notes)
    return f"{text} ({more})" if more else text


def _codec_notes(name: str) -> list[str]:
    codec = CODECS[name]
    notes = ["lossless" if codec.is_lossless else "lossy, with error feedback"]
    if not codec.is_one_round:
        notes.append("reducer scheduled only")
    if codec.needs_messages:
        notes.append("needs messages from rank to rank")
    return notes


def _uses(name: str) -> list[str]:
    method = METHODS[name]
    uses = (("sweep --sampler", method.measured_by), ("plan --method", method.predicted_by))
    return [f"`{option}`" for option, where in uses if where]
