"""JSON in and out: every kept dataclass survives a round trip, and every kind of damage is named where it is."""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from autotune.profilers.timeline import Span, Timeline
from autotune.results.store.record import BestPlan, Comparison, Prediction, Role, StudyInfo, TrialRecord, TrialState
from autotune.workloads.cluster import load_cluster
from autotune.workloads.errors import SpecError
from autotune.workloads.graph import Edge, Op, OpGraph, Parameter
from autotune.workloads.plan import default_plan
from autotune.workloads.serial import digest, from_data, to_data
from tests.results import sample


def complete_record() -> TrialRecord:
    """Every field set to something that is not its default."""
    return TrialRecord(
        number=7,
        role=Role.SEARCH,
        state=TrialState.COMPLETE,
        plan=sample.plan(codec="bf16"),
        params={"log_share.0": -0.12345678901234567, "bucket_log2": 20, "codec": "bf16"},
        search_number=3,
        reason="none",
        steps_s=(0.1, 0.2, 1 / 3),
        ranks=sample.ranks(sample.FAIR, 0.25, late_s=0.001),
        predicted=Prediction(step_s=0.3, peak_memory_bytes=5),
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=3.25,
    )


def best_plan() -> BestPlan:
    return BestPlan(
        workload="vgg",
        workload_fingerprint="0123456789ab",
        cluster="mixed4",
        cluster_fingerprint=load_cluster("mixed4").fingerprint(),
        plan=sample.plan(),
        step_s=0.213,
        speedup_over_default=2.31,
        speedup_interval=(2.28, 2.35),
        study="vgg",
        saved_at="2026-01-01T00:00:00+00:00",
    )


OP = Op(
    name="0",
    kind="Linear",
    num_calls=1,
    flops_per_sample=2e3,
    fixed_bytes=4.0,
    bytes_per_sample=1.5,
    param_bytes=8,
    backward_factor=2.0,
)
VALUES = [
    complete_record(),
    sample.refused(4, Role.SEARCH, sample.plan(), TrialState.INFEASIBLE, sample.NO_ROOM),
    sample.info(),
    sample.info(limit=False),
    best_plan(),
    dataclasses.replace(best_plan(), speedup_over_default=None, speedup_interval=()),
    sample.comparison(),
    default_plan((16,) * 4),
    load_cluster("this-machine"),
    OpGraph(ops=(OP,), saved_bytes_per_sample=3.0),
    OpGraph(
        ops=(
            dataclasses.replace(OP, saved_bytes_per_sample=3.0, output_bytes_per_sample=8.0, factor_shapes=((2, 1),)),
        ),
        saved_bytes_per_sample=3.0,
        parameters=(Parameter(name="0.weight", op="0", num_bytes=8),),
        edges=(Edge(source="0", target="(loss)", bytes_per_sample=8.0),),
        edges_from="fx",
        edges_note="export: RuntimeError: no",
    ),
    Timeline(spans=(Span(rank=1, track="comm", kind="comm", op="x", start_s=0.1, end_s=0.2, num_bytes=9),)),
]


def through_json(value: Any) -> Any:
    return from_data(type(value), json.loads(json.dumps(to_data(value))), "file.json")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_from_json_as_it_was(value: Any) -> None:
    again = through_json(value)
    assert again == value
    assert digest(again) == digest(value)


def test_a_record_comes_back_with_its_types_not_lookalikes() -> None:
    again = through_json(complete_record())
    assert again.role is Role.SEARCH
    assert again.state is TrialState.COMPLETE
    assert isinstance(again.plan.batch.samples, tuple)
    assert again.params == complete_record().params
    assert again.step_s == complete_record().step_s


def test_a_graph_that_was_kept_before_it_had_parameters_and_edges_can_still_be_read() -> None:
    first = ("name", "kind", "num_calls", "flops_per_sample", "fixed_bytes", "bytes_per_sample", "param_bytes")
    old = {
        "ops": [{key: to_data(OP)[key] for key in (*first, "backward_factor")}],
        "saved_bytes_per_sample": 3.0,
    }
    assert from_data(OpGraph, old, "old") == OpGraph(ops=(OP,), saved_bytes_per_sample=3.0)


# --- what is refused ---------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    name: str
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    number: int
    seconds: float
    ready: bool
    colour: Colour = Colour.RED
    inner: Inner | None = None
    inners: tuple[Inner, ...] = ()
    table: dict[str, float] = field(default_factory=dict)
    anything: Any = None


GOOD: dict[str, Any] = {"number": 1, "seconds": 2.5, "ready": True}


def refusal(**changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        from_data(Outer, GOOD | changes, "f.json")
    return str(caught.value)


def test_defaults_fill_in_what_is_not_given() -> None:
    assert from_data(Outer, GOOD, "f.json") == Outer(number=1, seconds=2.5, ready=True)


def test_an_unknown_key_suggests_the_one_that_was_meant() -> None:
    assert refusal(secnds=1.0) == "unknown key in f.json: 'secnds': did you mean 'seconds'?"


def test_an_unknown_key_deep_down_names_its_place() -> None:
    assert refusal(inners=[{"name": "a"}, {"name": "b", "count": []}]) == (
        "unknown key in f.json.inners[1]: 'count': did you mean 'counts'?"
    )


def test_a_missing_field_is_named() -> None:
    with pytest.raises(SpecError, match=r"^f\.json lacks 'seconds': add it$"):
        from_data(Outer, {"number": 1, "ready": True}, "f.json")


@pytest.mark.parametrize(
    ("changes", "place", "rule"),
    [
        ({"number": "1"}, "f.json.number is '1'", "of type int"),
        ({"number": 1.0}, "f.json.number is 1.0", "of type int"),
        ({"number": None}, "f.json.number is None", "of type int"),
        ({"seconds": "2.5"}, "f.json.seconds is '2.5'", "a number"),
        ({"ready": 1}, "f.json.ready is 1", "of type bool"),
        ({"colour": "green"}, "f.json.colour is 'green'", "one of 'red', 'blue'"),
        ({"inner": "a"}, "f.json.inner is 'a'", "a table"),
        ({"inner": {"name": 3}}, "f.json.inner.name is 3", "of type str"),
        ({"inner": {"name": "a", "counts": 3}}, "f.json.inner.counts is 3", "a list"),
        ({"inner": {"name": "a", "counts": [1, "2"]}}, "f.json.inner.counts[1] is '2'", "of type int"),
        ({"table": []}, "f.json.table is []", "a table"),
        ({"table": {"x": "y"}}, "f.json.table.x is 'y'", "a number"),
    ],
)
def test_a_wrong_type_is_refused_where_it_stands(changes: dict[str, Any], place: str, rule: str) -> None:
    assert refusal(**changes) == f"{place}: it must be {rule}"


@pytest.mark.parametrize("field_name", ["number", "seconds"])
@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_not_a_number(field_name: str, value: bool) -> None:
    assert f"f.json.{field_name} is {value}" in refusal(**{field_name: value})


@pytest.mark.parametrize("value", [[], {}, ["red"]])
def test_a_list_or_table_where_a_name_belongs_is_refused(value: object) -> None:
    assert "f.json.colour is" in refusal(colour=value)


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_a_document_that_is_no_table_is_refused(document: object) -> None:
    with pytest.raises(SpecError, match="it must be a table"):
        from_data(Outer, document, "f.json")


def test_a_whole_number_is_fine_where_a_float_is_wanted_and_becomes_one() -> None:
    read = from_data(Outer, GOOD | {"seconds": 2}, "f.json")
    assert type(read.seconds) is float


@pytest.mark.parametrize("kind", [TrialRecord, StudyInfo, BestPlan, Comparison])
def test_kept_files_refuse_a_key_from_the_future(kind: type) -> None:
    value = next(value for value in VALUES if type(value) is kind)
    with pytest.raises(SpecError, match="unknown key in old"):
        from_data(kind, to_data(value) | {"from_the_future": 1}, "old")


# --- digest ------------------------------------------------------------------------------------------------------------


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_a_digest_is_the_same_on_every_machine() -> None:
    """The SHA-256 of the compact JSON, cut to twelve figures; kept plans rely on it."""
    assert digest({"samples": [1, 2]}) == "f21c4bae81cb"


def test_a_tuple_and_the_list_it_is_kept_as_have_the_same_digest() -> None:
    assert digest((1, (2, 3))) == digest([1, [2, 3]])


@dataclasses.dataclass(frozen=True)
class ByRank:
    seconds: dict[int, float]


def test_numbers_as_keys_come_back_as_numbers() -> None:
    assert from_data(ByRank, json.loads(json.dumps(to_data(ByRank({3: 0.5})))), "x") == ByRank({3: 0.5})
    with pytest.raises(SpecError, match=r"x\.seconds, key is 'three': it must be a whole number"):
        from_data(ByRank, {"seconds": {"three": 0.5}}, "x")


def test_a_field_keeps_its_name_in_files() -> None:
    span = Span(rank=1, track="comm", kind="comm", op="x", start_s=0.1, end_s=0.2)
    data = to_data(span)
    assert data["lane"] == "comm"
    assert "track" not in data
    assert from_data(Span, data, "here") == span
    with pytest.raises(SpecError, match="lacks 'lane'"):
        from_data(Span, {key: value for key, value in data.items() if key != "lane"}, "here")
    with pytest.raises(SpecError, match="'track'"):
        from_data(Span, data | {"track": "comm"}, "here")
