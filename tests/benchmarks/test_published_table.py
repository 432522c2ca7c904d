"""The tables of the published sweeps, and the sizes of the models in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.results.store.record import DDP_TUNED
from tests.benchmarks.published_table import put_between, sizes_table, write

PAGE = "before\n<!-- results -->\nold\n<!-- /results -->\n<!-- sizes -->\nold\n<!-- /sizes -->\nafter\n"


def contender(name: str, step_s: float, ratio: float | None) -> dict[str, Any]:
    interval = None if ratio is None else {"value": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    return {
        "name": name,
        "samples_per_s": 64 / step_s,
        "is_lossless": True,
        "vs_first": interval,
        "vs_tuned": interval,
        "fraction_of_limit": None,
        "cpu_s_per_step": 0.1,
    }


def report() -> dict[str, Any]:
    compare = [
        contender("DDP default", 0.4, None),
        contender(DDP_TUNED, 0.2, None),
        contender("best plan", 0.16, 1.25),
    ]
    return {"workload": "vgg-tiny", "cluster": "mixed4", "label": "emulated", "global_batch": 48, "comparison": compare}


def test_a_size_is_read_from_the_model_and_its_data() -> None:
    text = sizes_table([("gpt-tiny", 32), ("vgg-tiny", 64), ("vgg-tiny", 64)])
    # Convolutions 3*16*9+16 and 16*16*9+16, Linear layers 256*256+256, 256*128+128 and 128*10+10.
    assert "| vgg-tiny | 102,746 | 401.4 KiB | image of 3 x 16 x 16 | 1,024 | 64 |" in text
    assert "16 tokens | 1,024 | 32 |" in text
    assert len(text.splitlines()) == 4, "each model once, below a heading"


def test_options_are_part_of_the_model() -> None:
    assert "| vgg-tiny,dtype=float64 | 102,746 | 802.7 KiB |" in sizes_table([("vgg-tiny,dtype=float64", 64)])


def test_a_page_gets_both_tables(tmp_path: Path) -> None:
    (tmp_path / "vgg-tiny.json").write_text(json.dumps(report()))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    write(page, tmp_path)
    text = page.read_text()
    assert "| vgg-tiny | mixed4 | emulated | 160 | 320 | 400 | 1.25x (1.24-1.26) |" in text
    assert "[vgg-tiny](../results/published/vgg-tiny.json)" in text
    assert "| 102,746 |" in text
    assert "| 48 |" in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "old" not in text


def test_what_stands_around_the_markers_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a<!-- x -->b<!-- /x -->c")
    put_between(page, "<!-- x -->", "<!-- /x -->", "new")
    assert page.read_text() == "a<!-- x -->\nnew\n<!-- /x -->c"
    with pytest.raises(IndexError):
        put_between(page, "<!-- y -->", "<!-- /y -->", "new")
