"""All pages of the repository: links and anchors resolve, every page is in an index, and paths and nox sessions exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ADRS = sorted((DOCS / "adr").glob("[0-9]*.md"))
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            page
            for folder in ("docs", "examples", "results/published", "tests")
            for page in (ROOT / folder).rglob("*.md")
        ),
    ]
)
ALL_PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]
PATH = re.compile(r"(?<![\w/.-])\w[\w.@-]*/[\w./@-]*\.(?:py|toml|md)\b")
NAME = re.compile(r"(?<![\w/.])autotune(?:\.\w+)+(?![\w/(])")
MAX_LENGTH = 120

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"^<!-- ([\w-]+) -->$.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SESSIONS = re.compile(r"\bnox -s ((?:[a-z_]+ ?)+)")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def without(pattern: re.Pattern[str], text: str) -> str:
    """The text with what matches blanked out, on as many lines as before."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    seen: Counter[str] = Counter()
    found = set()
    for title in re.findall(r"^#+ +(.*?) *$", without(_FENCE, read(page)), re.MULTILINE):
        shown = _LINK.sub(lambda match: match[0][1 : match[0].index("]")], title).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(page: Path) -> list[str]:
    """Targets of the links of a page that stay in the repository."""
    text = _CODE.sub("code", without(_FENCE, read(page)))
    return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def broken_links(page: Path) -> Iterator[str]:
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in anchors(file):
            yield f"{target}: no such heading"


def missing_paths(text: str) -> list[str]:
    spans = _CODE.findall(without(_FENCE, text))
    return [path for span in spans for path in PATH.findall(span) if not (ROOT / path).exists()]


def missing_names(text: str) -> list[str]:
    """Dotted names of ours in backticks that are neither a module nor, by its last part, in the text of a module."""
    return [name for span in _CODE.findall(without(_FENCE, text)) for name in NAME.findall(span) if not exists(name)]


def exists(name: str) -> bool:
    folder = ROOT.joinpath(*name.split("."))
    if folder.is_dir() or folder.with_suffix(".py").exists():
        return True
    module = folder.parent / "__init__.py" if folder.parent.is_dir() else folder.parent.with_suffix(".py")
    return module.exists() and re.search(rf"\b{folder.name}\b", read(module)) is not None


def sessions() -> set[str]:
    """The names of nox sessions: decorated functions, and the keys of the table PROGRAMS."""
    found = set()
    for node in ast.parse(read(ROOT / "noxfile.py")).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and _name(node.targets[0]) == "PROGRAMS":
            found |= set(ast.literal_eval(node.value))
    return found


def _name(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else ""


def test_there_are_pages() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {page.name for page in PAGES}
    assert len(PAGES) > 40


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_and_anchors_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", ALL_PAGES)
def test_repository_paths_exist(page: Path) -> None:
    assert missing_paths(read(page)) == []


@pytest.mark.parametrize("page", [page for page in ALL_PAGES if page.id != "CHANGELOG.md"])
def test_dotted_names_exist(page: Path) -> None:
    assert missing_names(read(page)) == []


@pytest.mark.parametrize("page", ALL_PAGES)
def test_nox_sessions_exist(page: Path) -> None:
    named = {name for names in _SESSIONS.findall(read(page)) for name in names.split()}
    assert named - sessions() == set()


@pytest.mark.parametrize(
    "page", [page for page in ALL_PAGES if "/" not in str(page.id) or str(page.id).startswith("docs/")]
)
def test_lines_of_prose_are_short(page: Path) -> None:
    text = without(_GENERATED, without(_FENCE, read(page)))
    lines = enumerate(text.split("\n"), 1)
    assert [number for number, line in lines if len(line) > MAX_LENGTH and not line.lstrip().startswith("|")] == []


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in links(index)}
    assert [page.name for page in DOCS.glob("*.md") if page != index and page not in linked] == []
    assert DOCS / "adr" / "README.md" in linked


def test_every_decision_is_in_its_index() -> None:
    assert [page.name for page in ADRS] == [target for target in links(DOCS / "adr" / "README.md") if target[0] == "0"]


@pytest.mark.parametrize("page", ADRS, ids=lambda page: page.name[:4])
def test_decisions_have_one_form(page: Path) -> None:
    text = read(page)
    number = page.name[:4]
    form = rf"# {number}: .+\n\nStatus: (accepted|superseded by \[\d{{4}}\]\(.+\))\n\nDate: 2\d{{3}}-\d\d-\d\d\n\n## Context\n"
    assert re.match(form, text)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(page.name[:4]) for page in ADRS] == list(range(1, len(ADRS) + 1))


@pytest.mark.parametrize(("container", "block"), [("autotune", 0), ("autotune.runtime", 1)])
def test_import_layers_are_those_of_the_contracts(container: str, block: int) -> None:
    contracts = tomllib.loads(read(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == [container])
    section = read(ROOT / "CONTRIBUTING.md").partition("### Import layers")[2]
    shown = _FENCE.findall(section)[block].split("\n")[1:-1]
    assert [line.split("  ")[0] for line in shown] == layers


def test_faults_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` [c](https://c.org): d\n\n## A\n\n## A\n\n```\n# no heading [x](y)\n```\n\n"
        "[1](page.md#a-b-c-d) [2](#a-1) [3](#a-2) [4](gone.md) [5](https://x.org/#z) `[6](code.md)` [7](#no-heading)\n",
        encoding="utf-8",
    )
    assert list(broken_links(page)) == [
        "#a-2: no such heading",
        "gone.md: no such file",
        "#no-heading: no such heading",
    ]
    assert missing_paths("`a/gone.py` a/prose.py `noxfile.py` `docs/README.md`\n```\n`b/c.py`\n```\n") == ["a/gone.py"]
    assert missing_names("`autotune.jobs.sweep` `autotune.jobs.gone` `autotune.api.parallelize`") == [
        "autotune.jobs.gone"
    ]
    assert "tests" in sessions()
    assert "gone" not in sessions()
