"""The examples of docs/your-script.md run, one after another, as a reader would paste them into one script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parent.parent / "docs" / "your-script.md"
_BLOCK = re.compile(r"^```python( runnable)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str, bool]]:
    """Of a page: the line on which each python block begins, its code, and whether it is marked as runnable."""
    return [(text.count("\n", 0, m.start(2)) + 1, m[2], m[1] is not None) for m in _BLOCK.finditer(text)]


def run(text: str, name: str = "page") -> dict[str, Any]:
    """Run all runnable blocks in one namespace; line numbers in errors are those of the page."""
    found: dict[str, Any] = {"__name__": name}
    for line, code, is_runnable in blocks(text):
        if is_runnable:
            exec(compile("\n" * (line - 1) + code, name, "exec"), found)
    return found


def test_every_example_of_the_page_is_marked_as_runnable() -> None:
    marks = [is_runnable for _, _, is_runnable in blocks(PAGE.read_text(encoding="utf-8"))]
    assert len(marks) >= 10
    assert all(marks)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_examples_of_the_page_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # one of them writes a checkpoint
    torch.manual_seed(0)
    found = run(PAGE.read_text(encoding="utf-8"), str(PAGE))
    assert capsys.readouterr().out.splitlines()[-1] == "steps overlap"
    assert all(torch.isfinite(p).all() for p in found["model"].parameters())
    assert type(found["model"][0].weight) is torch.nn.Parameter, "a job has left the model changed"


def test_an_example_that_fails_is_found_by_its_line() -> None:
    text = "text\n\n```python runnable\nx = 1\n```\n\n```python runnable\nx += 1\nassert x == 3\n```\n"
    with pytest.raises(AssertionError) as caught:
        run(text)
    assert caught.traceback[-1].lineno == 8
