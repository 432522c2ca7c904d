"""Finding a workload: by name or by "module:factory" from the working directory, with options of the right type."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.registry import check_workload_name, load_workload, split_workload, workload_names
from autotune.workloads.workload import Workload

OWN = """
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset


@dataclass
class Tiny:
    width: int = 8
    lr: float = 0.1
    flag: bool = False
    title: str = "tiny"
    extra: object = None
    name: str = "own"
    global_batch: int = 4
    min_samples: int = 1

    def model(self):
        return nn.Linear(self.width, 2)

    def dataset(self):
        return TensorDataset(torch.zeros(4, self.width), torch.zeros(4, 2))

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.lr)


def tiny(*, width: int = 8, lr: float = 0.1, flag: bool = False, title: str = "tiny", extra=None):
    return Tiny(width=width, lr=lr, flag=flag, title=title, extra=extra)


def tinier():
    return Tiny(width=1)


def layered(*, widths=(8, 4)):
    return Tiny(width=widths[0])


class Half:
    name = "half"
    global_batch = 4

    def model(self):
        return None


def half():
    return Half()


number = 3
"""

Write = Callable[[str, str], None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """A working directory to put modules into; what they leave in the interpreter is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    yield write
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def refusal(spec: str, options: dict[str, Any] | None = None) -> str:
    with pytest.raises(SpecError) as caught:
        load_workload(spec, options)
    return str(caught.value)


# --- names -------------------------------------------------------------------------------------------------------------


def test_names_are_models_alone_and_with_each_size() -> None:
    names = workload_names()
    assert {"vgg", "vgg-tiny", "vgg-small", "vgg-large", "mlp", "gpt", "resnet", "digits"} <= set(names)
    assert "digits-tiny" not in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("given", "nearest"), [("vgb", "vgg"), ("resnett", "resnet"), ("vgg-tinny", "vgg-tiny")])
def test_an_unknown_name_suggests_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_workload_name(given)
    expected = f"unknown workload {given!r}: did you mean {nearest!r}? (your own: --workload module:factory)"
    assert str(caught.value) == expected


def test_a_name_like_no_other_lists_what_there_is() -> None:
    assert "known: digits, dlrm, " in refusal("xyz")


def test_a_name_can_be_checked_without_torch() -> None:
    code = "import sys; from autotune.workloads.registry import check_workload_name as c; c('vgg'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_model_without_a_size_is_the_small_one() -> None:
    assert load_workload("mlp").name == load_workload("mlp-small").name == "mlp-small"


def test_a_size_in_the_name_is_taken() -> None:
    assert load_workload("mlp-tiny").name == "mlp-tiny"


# --- module:factory ----------------------------------------------------------------------------------------------------


def test_a_factory_is_found_in_the_working_directory(here: Write) -> None:
    here("own_job.py", OWN)
    workload = load_workload("own_job:tiny")
    assert isinstance(workload, Workload)
    assert workload.name == "own"


def test_a_factory_is_found_in_a_package_of_the_working_directory(here: Write) -> None:
    here("own_package/__init__.py", "")
    here("own_package/jobs.py", OWN)
    assert load_workload("own_package.jobs:tiny").name == "own"


def test_a_module_that_is_not_there_is_named_with_the_remedy(here: Write) -> None:
    assert refusal("no_such_job:tiny") == (
        "workload 'no_such_job:tiny': cannot import 'no_such_job': run from the folder that holds it, or set PYTHONPATH"
    )


def test_a_module_that_imports_something_missing_names_what_is_missing(here: Write) -> None:
    here("needs_more.py", "import not_installed_anywhere")
    assert "cannot import 'not_installed_anywhere'" in refusal("needs_more:tiny")


def test_a_missing_factory_suggests_the_nearest(here: Write) -> None:
    here("own_job.py", OWN)
    assert refusal("own_job:tinny") == "unknown factory in 'own_job' 'tinny': did you mean 'tiny'?"


def test_something_that_cannot_be_called_is_no_factory(here: Write) -> None:
    here("own_job.py", OWN)
    assert "unknown factory in 'own_job' 'number'" in refusal("own_job:number")


@pytest.mark.parametrize("spec", [":tiny", "own_job:"])
def test_half_a_spec_is_refused(here: Write, spec: str) -> None:
    here("own_job.py", OWN)
    assert refusal(spec)


def test_a_workload_that_lacks_members_is_refused_with_their_names(here: Write) -> None:
    here("own_job.py", OWN)
    assert refusal("own_job:half") == (
        "workload 'own_job:half' lacks dataset, loss, min_samples, optimizer: "
        "see workloads/workload.py for what a workload has"
    )


def test_a_factory_that_returns_nothing_is_refused(here: Write) -> None:
    here("own_nothing.py", "def job():\n    pass\n")
    assert "lacks dataset, global_batch, loss, min_samples, model, name, optimizer" in refusal("own_nothing:job")


# --- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("width", "16", 16),
        ("lr", "0.5", 0.5),
        ("lr", "1", 1.0),
        ("title", "7", "7"),
        ("extra", "text", "text"),
        ("flag", "true", True),
    ],
)
def test_an_option_becomes_the_type_of_its_default(here: Write, key: str, text: str, value: object) -> None:
    here("own_job.py", OWN)
    found = getattr(load_workload("own_job:tiny", {key: text}), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["false", "0"])
def test_a_switch_set_to_false_is_off(here: Write, text: str) -> None:
    here("own_job.py", OWN)
    assert getattr(load_workload("own_job:tiny", {"flag": text}), "flag") is False  # noqa: B009 - not in the protocol


def test_an_option_of_the_right_type_already_is_taken_as_it_is(here: Write) -> None:
    here("own_job.py", OWN)
    assert getattr(load_workload("own_job:tiny", {"width": 3}), "width") == 3  # noqa: B009 - not in the protocol


@pytest.mark.parametrize("text", ["maybe", "", "2"])
def test_a_switch_set_to_neither_true_nor_false_is_refused(here: Write, text: str) -> None:
    here("own_job.py", OWN)
    assert (
        refusal("own_job:tiny", {"flag": text})
        == f"option flag={text!r} of workload 'own_job:tiny' must be of type bool, such as --set flag=false"
    )


@pytest.mark.parametrize("text", ["wide", "1.5", ""])
def test_an_option_that_is_not_of_its_type_is_refused(here: Write, text: str) -> None:
    here("own_job.py", OWN)
    assert refusal("own_job:tiny", {"width": text}) == (
        f"option width={text!r} of workload 'own_job:tiny' must be of type int, such as --set width=8"
    )


def test_text_is_not_taken_apart_for_an_option_that_is_a_tuple(here: Write) -> None:
    here("own_job.py", OWN)
    assert "'widths'" in refusal("own_job:layered", {"widths": "88"})


def test_an_unknown_option_suggests_the_nearest(here: Write) -> None:
    here("own_job.py", OWN)
    assert "unknown option of workload 'own_job:tiny' 'widht': did you mean 'width'?" in refusal(
        "own_job:tiny", {"widht": "3"}
    )


def test_an_option_of_a_factory_without_any_is_refused(here: Write) -> None:
    here("own_job.py", OWN)
    assert "known: (none)" in refusal("own_job:tinier", {"width": "3"})


def test_an_option_reaches_a_shipped_workload() -> None:
    assert load_workload("mlp-tiny", {"global_batch": "128"}).global_batch == 128


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vgg", ("vgg", {})),
        ("bert_job:factory,global_batch=48", ("bert_job:factory", {"global_batch": "48"})),
        ("text,lr=1,path=a,b=c.txt", ("text", {"lr": "1", "path": "a", "b": "c.txt"})),
        ("text,lr=1,path=a,2.txt", ("text", {"lr": "1", "path": "a,2.txt"})),
        ("vgg,mlp", ("vgg,mlp", {})),
    ],
)
def test_a_name_with_options_is_taken_apart(name: str, expected: tuple[str, dict[str, str]]) -> None:
    assert split_workload(name) == expected
