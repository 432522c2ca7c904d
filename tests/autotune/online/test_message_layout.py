"""The messages of a plan: one reading of it by the online features, the simulator and the runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.online.candidates import candidates
from autotune.online.features import CANDIDATE_FEATURES, FeatureTable
from autotune.online.message_layout import layout_of
from autotune.online.model_sizes import ModelSizes
from autotune.online.priors import Priors
from autotune.workloads.graph import OpGraph
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, KindCodec, Plan
from tests.autotune.online.jobs import SAMPLES, make_space, seen
from tests.autotune.simulate.test_closed_forms import MB, make_cluster, make_graph, make_simulator

KINDS = ("Conv2d", "Conv2d", "LayerNorm", "Conv2d", "Linear", "Linear", "LayerNorm", "Linear")


def mixed_graph() -> OpGraph:
    """Eight layers of 4 MB, of three kinds."""
    graph = make_graph(len(KINDS), param_bytes=4 * MB)
    parameters = tuple(replace(one, kind=kind) for one, kind in zip(graph.parameters, KINDS, strict=True))
    return replace(graph, parameters=parameters)


GRAPH = mixed_graph()
MODEL = ModelSizes.of(GRAPH)


def scheduled(codec: str = "none", partition_bytes: int = 3 * MB, **by_kind: str) -> Plan:
    return Plan(
        batch=BatchPlan(samples=SAMPLES),
        comm=CommPlan(reducer="scheduled", partition_bytes=partition_bytes, credit_bytes=partition_bytes),
        compression=CompressionPlan(
            codec=codec, by_kind=tuple(KindCodec(kind=kind, codec=name) for kind, name in by_kind.items())
        ),
    )


@pytest.mark.parametrize("partition_bytes", [MB, 3 * MB, 10 * MB, 100 * MB])
@pytest.mark.parametrize(
    ("codec", "by_kind"),
    [
        ("none", {"Linear": "fp16"}),
        ("none", {"Linear": "fp16", "Conv2d": "bf16"}),
        ("fp16", {"LayerNorm": "none"}),
    ],
)
def test_every_layer_is_sent_by_its_own_codec_as_in_the_simulator(
    codec: str, by_kind: dict[str, str], partition_bytes: int
) -> None:
    plan = scheduled(codec, partition_bytes, **by_kind)
    sent = make_simulator(GRAPH, make_cluster([MB] * 4), sum(SAMPLES)).wire_bytes(plan)
    layout = layout_of(plan, MODEL)
    assert layout.num_messages == len(sent)
    assert layout.wire_bytes == pytest.approx(sum(sent))
    assert layout.largest_bytes == pytest.approx(max(sent))
    assert layout.late_bytes[0] == pytest.approx(sum(sent))


@pytest.mark.parametrize("codec", ["int8", "topk", "powersgd"])
def test_codecs_with_other_rounds_count_for_their_layers_only(codec: str) -> None:
    """Three of eight layers are Linear: they are sent as if all were, the others as they are."""
    alone, mixed, plain = scheduled(codec), scheduled(Linear=codec), scheduled()
    wire_bytes = [layout_of(plan, MODEL).wire_bytes for plan in (alone, mixed, plain)]
    assert wire_bytes[1] == pytest.approx(3 / 8 * wire_bytes[0] + 5 / 8 * wire_bytes[2], rel=0.01)
    assert layout_of(mixed, MODEL).codec_bytes == ((codec, 3 * 4.0 * MB),)
    assert layout_of(mixed, MODEL).num_rounds == layout_of(alone, MODEL).num_rounds


def test_features_follow_the_codec_of_each_layer() -> None:
    plans = [scheduled(), scheduled(Linear="int8"), scheduled("int8")]
    priors = Priors(model=MODEL, codec_s_per_byte={"int8": 1e-6})
    rows = FeatureTable(plans, priors).features(replace(seen(plans[0]), priors=priors))[1]
    for name, order in (("ratio_log", -1), ("codec_log", 1), ("wire_log", -1), ("is_message_codec", 1)):
        column = order * rows[:, CANDIDATE_FEATURES.index(name)]
        assert column[0] < column[1] < column[2], name
    assert rows[1, CANDIDATE_FEATURES.index("is_message_codec")] == np.float32(3 / 8)


def test_a_kind_with_the_codec_of_all_layers_changes_nothing() -> None:
    one, other = (layout_of(plan, MODEL) for plan in (scheduled("fp16"), scheduled("fp16", Linear="fp16")))
    assert one == other


def test_a_plan_with_codecs_by_kind_is_retuned_with_its_own_compression() -> None:
    running = scheduled(Linear="fp16")
    found = candidates(make_space(), SAMPLES, transport="gloo", also=[running]).plans
    alike = [plan for plan in found if plan.compression == running.compression]
    assert len({plan.comm.partition_bytes for plan in alike}) > 3
    for plan in alike:
        plan.validate(num_ranks=4, global_batch=12)
