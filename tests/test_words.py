"""The field's words: what torch, MPI and Optuna call a thing is what we call it, in code, docs, tests and file names.

The table says what to write instead of a word that this project once made up, or that makes a person of a program. It is
applied to lower-case text with `JobBench` read as "job bench"; `_` and digits end a word. `docs/glossary.md` explains the
terms on the right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("autotune", "workloads", "results", "profilers", "tests", "examples", "docs")
FILES = ("README.md", "CONTRIBUTING.md", "noxfile.py", "pyproject.toml", ".pre-commit-config.yaml", ".ci/run")
TEXT = (".py", ".md", ".toml", ".yaml")
LEFT_OUT = (
    "tests/test_words.py",
    "tests/compatibility/files/",  # what an older version wrote
    "workloads/texts/",  # training data
    "results/data/",  # what runs wrote
    "docs/glossary.md",  # names both words
)
PROSE = (r"\.md$",)
"""Pages for users, in ordinary English."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word that is not written, and what is written instead."""

    pattern: str
    instead: str
    allowed: tuple[str, ...] = ()
    """Files, as regular expressions, where the word has its other meaning."""
    only: str = ""
    """Files, as a regular expression, to which the rule is limited."""
    found_in: tuple[str, ...] = field(default=(), repr=False)
    """Examples for the test of the pattern, beside the word itself."""

    @property
    def regex(self) -> re.Pattern[str]:
        spaced = self.pattern.replace(" ", r"(?:[\s_#]|\\n)+")
        return re.compile(rf"(?<![a-z])(?:{spaced})(?![a-z])")

    def concerns(self, file: str) -> bool:
        return bool(re.search(self.only, file)) and not any(re.search(allowed, file) for allowed in self.allowed)


PYTHON = r"\.py$"
WORDS = {
    # no persons
    "whoever": Word(pattern="whoever|whomever", instead="the caller, the rank, the thread"),
    "nobody": Word(pattern="nobody", instead="no rank, no thread, nothing"),
    "somebody": Word(pattern="somebody|someone", instead="a rank, a caller, a user"),
    "anybody": Word(pattern="anybody|anyone", instead="any rank, any caller, any user", allowed=PROSE),
    "thinks": Word(pattern="thinks?|thinking", instead="computes, decides; background task"),
    "hears": Word(pattern="hears?|heard", instead="receives"),
    "believes": Word(pattern="believes?|believed", instead="assumes, estimates"),
    "is told": Word(
        pattern="(is|are|was|were|been|be|being) told",
        instead="receives, is given, is set to",
        allowed=(r"optuna",),  # which has `ask` and `tell`
    ),
    # ranks, jobs and threads
    "seat": Word(pattern="seats?", instead="rank context"),
    "crew": Word(pattern="crews?", instead="workers"),
    "bench": Word(pattern="bench|benches", instead="job context; benchmarks"),
    "performer": Word(pattern="performers?", instead="trainer protocol"),
    "settle": Word(
        pattern="settles?|settled|settling", instead="flush", only=r"^(autotune|tests/autotune)/(runtime|online)/"
    ),
    "meet": Word(pattern=r"def meet|\.meet\(", instead="barrier", only=PYTHON, found_in=("group.meet(",)),
    "pilot": Word(pattern="pilots?", instead="step coordinator"),
    "word": Word(pattern=r"step word|pilot's word", instead="step directive", only=PYTHON),
    "switchboard": Word(pattern="switchboards?", instead="selector"),
    "desk": Word(pattern="desks?", instead="endpoint"),
    "line of small messages": Word(pattern="lines? of small messages", instead="control channel"),
    "aside": Word(pattern="aside", instead="background task"),
    "breath": Word(pattern="breaths?", instead="yield"),
    "unhurried": Word(pattern="unhurried", instead="background"),
    # measuring
    "contest": Word(
        pattern="contests?",
        instead="interleaved comparison",
        allowed=(r"series_file\.py$",),  # the key of a report until version 0.1
    ),
    "in turn": Word(
        pattern="in turn",
        instead="interleaved; serialized (links); one after another",
        allowed=(r"^docs/measuring\.md$",),  # explains a published table
    ),
    "put back": Word(pattern="(put|puts|putting) back", instead="ablation: reset to its default"),
    "effort": Word(pattern="efforts?", instead="measurement budget"),
    "hand-tuned": Word(pattern="hand[-_]tuned|hand tuned", instead="tuned DDP", found_in=("hand_tuned",)),
    "by hand": Word(
        pattern="by hand",
        instead="manually; tuned DDP",
        allowed=(  # the name of tuned DDP in files of version 0.1, and in the tables made of them
            r"results/store/record\.py$",
            r"^tests/results/.*/test_(race|series_file|store)\.py$",
            r"^docs/race\.md$",
        ),
    ),
    "hiccup": Word(pattern="hiccups?", instead="outlier step"),
    "processor time": Word(pattern="processor (time|seconds?)", instead="CPU time"),
    "the clock": Word(pattern="(by|over) the clock", instead="wall time"),
    "second opinion": Word(pattern="second opinions?", instead="simulator check"),
    "rough guess": Word(pattern="rough guess(es)?", instead="analytic model"),
    # searching and retuning
    "tilt": Word(
        pattern="tilts?|tilted",
        instead="log share ratio",
        allowed=(r"^autotune/space/", r"^autotune/search/"),  # the name of a stored coordinate
    ),
    "liar": Word(pattern="liars?", instead="misreporting rank"),
    "enemies": Word(pattern="enemy|enemies", instead="adversarial scenarios"),
    "clairvoyant": Word(pattern="clairvoyants?|one who knows", instead="oracle"),
    "comes and goes": Word(pattern="(comes|come) and (goes|go)", instead="flapping"),
    "trace of a changing cluster": Word(
        pattern="traces? of a changing (cluster|mix)|changing trace|traces/", instead="scenario; scenarios/"
    ),
    # sending
    "crossing": Word(
        pattern="crossings?",
        instead="cross-step overlap",
        allowed=(r"^docs/simulator\.md$",),  # explains a published table
    ),
    "under way": Word(pattern="under-?way|under way", instead="in flight; running"),
    "landed": Word(pattern="lands?|landed|landing|landings", instead="completed, completion"),
    "grant": Word(pattern="grants?|granted|granting", instead="scheduled"),
    "offer": Word(
        pattern="offers?|offered|offering",
        instead="ready; has, allows",
        allowed=(*PROSE, r"(placement|space)/test_", r"test_pipeline_plans"),  # candidates that a search is given
    ),
    "stand-in": Word(
        pattern="stand-ins?|stand_ins?|standins?",
        instead="host representative",
        allowed=(r"^tests/(profilers|loops|benchmarks|workloads)/",),  # a fake library
    ),
    "look at links": Word(pattern="looks? at (the )?links", instead="link probe"),
    "way of sending": Word(pattern="ways? of sending", instead="communication configuration"),
    "unit of gradients": Word(pattern="units? of gradients?", instead="fusion buffer"),
    "part of a unit": Word(pattern="parts? of (a|the) units?", instead="partition"),
    "credit in parts": Word(pattern="credits? in parts", instead="credit: bytes in flight"),
    # the rest
    "the door": Word(pattern="the door|at the door", instead="input validation"),
    "mix": Word(
        pattern=r"(?<!device\x20)(?<!device_)(?<!not\x20)(?<!not_)(?<!would\x20)(mix|mixes)(?! of devices)",
        instead="cluster",
        only=PYTHON,
        allowed=(r"^noxfile\.py$",),  # the name of a published study
    ),
}


@cache
def texts() -> dict[str, str]:
    """Every file that is checked, as lower-case text in which every word stands alone."""
    paths = [path for top in FOLDERS for path in sorted((ROOT / top).rglob("*")) if path.suffix in TEXT]
    paths += [ROOT / file for file in FILES]
    return {file: apart(path.read_text(encoding="utf-8")) for path in paths if not left_out(file := name_of(path))}


@cache
def names() -> list[str]:
    """The paths of all files."""
    found = (name_of(path) for top in FOLDERS for path in sorted((ROOT / top).rglob("*")) if path.is_file())
    return [file for file in found if not left_out(file) and "__pycache__" not in file]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def left_out(file: str) -> bool:
    return file.startswith(LEFT_OUT)


def apart(text: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower()


def places(word: Word) -> list[str]:
    """Where a word is written: file and line, or the file's name."""
    found = [
        f"{file}:{text.count(chr(10), 0, hit.start()) + 1}: {' '.join(hit[0].split())}"
        for file, text in texts().items()
        if word.concerns(file)
        for hit in word.regex.finditer(text)
    ]
    return found + [f"{file}: its name" for file in names() if word.concerns(file) and word.regex.search(apart(file))]


@pytest.mark.parametrize("word", WORDS)
def test_the_standard_term_is_written_instead_of(word: str) -> None:
    found = places(WORDS[word])
    assert not found, f"{len(found)} times; write: {WORDS[word].instead}"


@pytest.mark.parametrize(
    ("text", "word", "is_found"),
    [
        ("the JobBench of a rank", "bench", True),
        ("bench_size", "bench", True),
        ("a benchmark", "bench", False),
        ("measured in\n    # turn", "in turn", True),
        ("return", "in turn", False),
        ("mixed4 and a device mix", "mix", False),
        ("one_mix", "mix", True),
        ("a stand-in", "stand-in", True),
        ("words stand in order", "stand-in", False),
        ("the crossing_s of a plan", "crossing", True),
        ("crosses_steps", "crossing", False),
    ],
)
def test_a_word_is_found_as_a_word(text: str, word: str, is_found: bool) -> None:
    assert bool(WORDS[word].regex.search(apart(text))) is is_found


def test_every_allowed_file_exists() -> None:
    for name, word in WORDS.items():
        for pattern in word.allowed:
            assert any(re.search(pattern, file) for file in texts()), (name, pattern)
