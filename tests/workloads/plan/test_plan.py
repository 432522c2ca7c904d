"""Plans: what may run is let through, what cannot is refused with the remedy."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from autotune.workloads.errors import SpecError
from autotune.workloads.plan import (
    CODECS,
    MIB,
    TRANSPORTS,
    BatchPlan,
    CommPlan,
    CompressionPlan,
    KindCodec,
    PipelinePlan,
    Plan,
    ReducerKind,
    default_plan,
)
from autotune.workloads.serial import from_data, to_data

SAMPLES = (27, 18, 13, 6)


def plan(
    samples: tuple[int, ...] = SAMPLES,
    *,
    reducer: str = "bucketed",
    transport: str = "gloo",
    bucket_bytes: int = MIB,
    codec: str = "none",
    **comm: Any,
) -> Plan:
    return Plan(
        batch=BatchPlan(samples=samples),
        comm=CommPlan(reducer=reducer, transport=transport, bucket_bytes=bucket_bytes, **comm),
        compression=CompressionPlan(codec=codec),
    )


def refusal(refused: Plan, *, num_ranks: int = 4, global_batch: int = 64) -> str:
    with pytest.raises(SpecError) as caught:
        refused.validate(num_ranks=num_ranks, global_batch=global_batch)
    return str(caught.value)


def test_the_default_plan_is_ddp_with_its_own_defaults() -> None:
    default = default_plan((16,) * 4)
    assert default.comm == CommPlan(reducer="ddp", transport="gloo", bucket_bytes=25 * MIB)
    assert default.compression.codec == "none"
    default.validate(num_ranks=4, global_batch=64)


@pytest.mark.parametrize("reducer", list(ReducerKind))
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_combination_of_knobs_runs_but_codecs_that_a_reducer_does_not_know(
    reducer: str, transport: str, codec: str
) -> None:
    tried = plan(reducer=reducer, transport=transport, codec=codec)
    if reducer == "ddp" and codec not in {"none", "fp16"}:
        message = refusal(tried)
        assert message.startswith("reducer 'ddp' takes codec none or fp16")
        assert message.endswith("use reducer 'bucketed'")
    elif reducer == "bucketed" and codec not in {"none", "fp16", "bf16"}:
        message = refusal(tried)
        assert message.startswith("reducer 'bucketed' takes codec none, fp16, bf16")
        assert message.endswith("use reducer 'scheduled'")
    elif reducer == "averaged" and codec != "none":
        assert refusal(tried).endswith("use codec 'none'")
    elif transport == "mpi" and codec in {"int8", "topk"}:
        assert refusal(tried).endswith("use transport 'gloo'")
    else:
        tried.validate(num_ranks=4, global_batch=64)


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ((27, 18, 13, 2), "samples per rank sum to 60 but the global batch is 64: add 4 samples"),
        ((27, 18, 13, 9), "samples per rank sum to 67 but the global batch is 64: take away 3 samples"),
        ((32, 32), "this plan is for 2 ranks, the job has 4: start `mpirun -n 2 …`, or sweep with --ranks 4"),
        ((70, -6, 0, 0), "samples per rank [70, -6, 0, 0] has a negative entry: samples are counted from 0"),
    ],
)
def test_samples_that_do_not_make_the_batch_are_refused(samples: tuple[int, ...], text: str) -> None:
    assert refusal(plan(samples)) == text


@pytest.mark.parametrize("what", ["reducer", "transport", "codec"])
def test_an_unknown_knob_lists_what_there_is(what: str) -> None:
    message = refusal(plan(**{what: "magic"}))
    assert message.startswith(f"the plan's {what} is 'magic': it must be one of ")


def test_a_bucket_of_nothing_is_refused() -> None:
    assert refusal(plan(bucket_bytes=0)) == "the plan's bucket_bytes is 0: it must be at least 1"


@pytest.mark.parametrize("reducer", ["bucketed", "ddp", "scheduled"])
def test_a_rank_without_samples_is_left_out(reducer: str) -> None:
    left = plan((32, 0, 32, 0), reducer=reducer)
    left.validate(num_ranks=4, global_batch=64)
    assert left.leaves_out
    assert left.used_ranks == (0, 2)
    assert left.part(left.used_ranks) == plan((32, 32), reducer=reducer)


def test_a_rank_without_samples_that_owns_shares_takes_part() -> None:
    served = plan((32, 0, 32, 0), collective="server", servers=(3,))
    assert served.used_ranks == (0, 2, 3)
    assert served.part((0, 2, 3)) == plan((32, 32, 0), collective="server", servers=(2,))
    owned = plan((32, 0, 32, 0), collective="shards", shares=(0.5, 0.5, 0.0, 0.0))
    assert owned.used_ranks == (0, 1, 2)
    assert owned.part((0, 1, 2)).comm.shares == (0.5, 0.5, 0.0)


def test_ddp_needs_samples_on_every_rank_that_takes_part() -> None:
    served = plan((32, 32, 0, 0), reducer="ddp", collective="server", servers=(3,))
    assert "needs a sample on every rank that takes part" in refusal(served)


def test_a_rank_of_no_stage_is_left_out() -> None:
    staged = PipelinePlan(first_ops=(0, 2), stage_ranks=((3,), (1,)), micro_batches=2)
    left = Plan(batch=BatchPlan(samples=(0, 64, 0, 64)), pipeline=staged)
    left.validate(num_ranks=4, global_batch=64)
    assert left.used_ranks == (1, 3)
    part = left.part(left.used_ranks)
    assert part.pipeline is not None
    assert part.pipeline.stage_ranks == ((1,), (0,))
    part.validate(num_ranks=2, global_batch=64)


@pytest.mark.parametrize(("share", "low_rank"), [(1e-9, 1), (1.0, 1000)])
def test_any_share_and_any_rank_of_factors_is_fine(share: float, low_rank: int) -> None:
    compression = CompressionPlan(codec="topk", top_share=share, low_rank=low_rank)
    dataclasses.replace(plan(reducer="scheduled"), compression=compression).validate(num_ranks=4, global_batch=64)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_of_nothing_or_of_more_than_all_is_refused(share: float) -> None:
    refused = dataclasses.replace(plan(), compression=CompressionPlan(codec="topk", top_share=share))
    assert refusal(refused) == (
        f"the plan's top_share is {share}: it must be above 0 and at most 1, such as 0.01 for one value in a hundred"
    )


def test_factors_without_columns_are_refused() -> None:
    refused = dataclasses.replace(plan(), compression=CompressionPlan(codec="powersgd", low_rank=0))
    assert refusal(refused) == "the plan's low_rank is 0: it must be at least 1, such as 4"


@pytest.mark.parametrize(("codec", "lossless"), [(codec, codec == "none") for codec in CODECS])
def test_only_the_codec_decides_whether_a_plan_is_lossless(codec: str, lossless: bool) -> None:
    assert plan(codec=codec).is_lossless is lossless


def by_kind(*pairs: tuple[str, str], reducer: str = "scheduled", transport: str = "gloo") -> Plan:
    codecs = tuple(KindCodec(kind=kind, codec=codec) for kind, codec in pairs)
    return dataclasses.replace(plan(reducer=reducer, transport=transport), compression=CompressionPlan(by_kind=codecs))


def test_one_lossy_kind_of_layers_makes_a_plan_lossy() -> None:
    assert not by_kind(("Linear", "fp16")).is_lossless
    assert by_kind(("Linear", "none")).is_lossless


def test_codecs_of_kinds_are_checked_like_any_other() -> None:
    by_kind(("Linear", "int8"), ("Conv2d", "fp16")).validate(num_ranks=4, global_batch=64)
    assert "'zip': it must be one of none, fp16" in refusal(by_kind(("Linear", "zip")))
    assert refusal(by_kind(("Linear", "fp16"), ("Linear", "bf16"))).endswith("each kind may have one codec")
    assert refusal(by_kind(("Linear", "fp16"), reducer="bucketed")).endswith("use reducer 'scheduled'")
    assert "which codec 'topk' needs" in refusal(by_kind(("Linear", "topk"), transport="mpi"))


def test_a_kind_goes_by_its_own_codec_and_the_rest_by_the_plans() -> None:
    chosen = CompressionPlan(codec="bf16", top_share=0.3, by_kind=(KindCodec(kind="Linear", codec="topk"),))
    assert chosen.for_kind("Linear") == CompressionPlan(codec="topk", top_share=0.3)
    assert chosen.for_kind("Conv2d") == CompressionPlan(codec="bf16", top_share=0.3)


@pytest.mark.parametrize("kept", [plan(), by_kind(("Linear", "fp16"))], ids=["one codec", "by kind"])
def test_equal_plans_have_equal_fingerprints_also_after_json(kept: Plan) -> None:
    again = from_data(Plan, json.loads(json.dumps(to_data(kept))), "plan")
    assert again == kept
    assert again.fingerprint() == kept.fingerprint()


def test_norms_count_for_the_fingerprint_only_if_they_are_synchronised() -> None:
    plain = Plan(batch=BatchPlan(samples=SAMPLES))
    synchronised = Plan(batch=BatchPlan(samples=SAMPLES, sync_norm=True))
    assert BatchPlan(samples=SAMPLES, sync_norm=False) == plain.batch
    assert synchronised.fingerprint() != plain.fingerprint()
    assert from_data(Plan, {"batch": {"samples": list(SAMPLES)}}, "plan") == plain


def test_models_that_are_averaged_have_norms_of_their_own() -> None:
    averaged = Plan(batch=BatchPlan(samples=SAMPLES, sync_norm=True), comm=CommPlan(reducer="averaged"))
    assert refusal(averaged).endswith("set sync_norm to false, or use another reducer")


def test_owners_of_shards_are_one_share_a_rank() -> None:
    def owned(*shares: float, collective: str = "shards") -> Plan:
        return dataclasses.replace(plan(), comm=CommPlan(collective=collective, shares=shares))

    owned(0.5, 0.0, 0.25, 0.25).validate(num_ranks=4, global_batch=64)
    assert "4 ranks need one each" in refusal(owned(0.5, 0.5))
    assert "summing to 1" in refusal(owned(0.5, 0.5, 0.5, -0.5))
    assert "summing to 1" in refusal(owned(0.5, 0.0, 0.25, 0.2))
    assert refusal(owned(0.25, 0.25, 0.25, 0.25, collective="ring")).endswith("only 'shards' have owners")


def test_every_field_counts_for_the_fingerprint() -> None:
    variants = [
        dataclasses.replace(plan(), comm=CommPlan(collective="shards")),
        dataclasses.replace(plan(), comm=CommPlan(collective="shards", shares=(1.0, 0.0, 0.0, 0.0))),
        plan(),
        plan((26, 19, 13, 6)),
        plan((18, 27, 13, 6)),
        plan(reducer="ddp"),
        plan(transport="mpi"),
        plan(bucket_bytes=2 * MIB),
        plan(codec="bf16"),
        dataclasses.replace(plan(), compression=CompressionPlan(top_share=0.02)),
        dataclasses.replace(plan(), compression=CompressionPlan(low_rank=2)),
        dataclasses.replace(plan(), compression=CompressionPlan(by_kind=(KindCodec(kind="Linear", codec="fp16"),))),
    ]
    assert len({variant.fingerprint() for variant in variants}) == len(variants)


def test_a_plan_kept_before_codecs_had_options_is_the_plan_with_their_defaults() -> None:
    """Its fingerprint, too, is the one it had then."""
    kept = from_data(Plan, {"batch": {"samples": [1]}, "compression": {"codec": "fp16"}}, "plan")
    assert kept.compression == CompressionPlan(codec="fp16", top_share=0.01, low_rank=4)
    assert kept.fingerprint() == "b1cfd0c017dd"


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan().batch = BatchPlan(samples=(64,))  # type: ignore[misc]


def staged(**changes) -> Plan:
    """Two stages of one rank each; `changes` of the pipeline."""
    given = {"first_ops": (0, 4), "stage_ranks": ((0,), (1,)), "micro_batches": 4} | changes
    return Plan(batch=BatchPlan(samples=(64, 64)), pipeline=PipelinePlan(**given))


def test_a_plan_with_stages_may_leave_ranks_out_but_not_their_samples() -> None:
    idle = dataclasses.replace(staged(), batch=BatchPlan(samples=(64, 64, 0)))
    idle.validate(num_ranks=3, global_batch=64)
    assert idle.global_batch == 64
    wrong = dataclasses.replace(staged(), batch=BatchPlan(samples=(64, 64, 1)))
    assert "in none and without samples" in refusal(wrong, num_ranks=3)


def test_a_searched_order_is_part_of_the_plan() -> None:
    order = ("F0 F1 B0 B1", "F0 B0 F1 B1")
    searched = staged(micro_batches=2, schedule="searched", order=order)
    searched.validate(num_ranks=2, global_batch=64)
    assert from_data(Plan, json.loads(json.dumps(to_data(searched))), "plan") == searched
    assert searched.fingerprint() != staged(micro_batches=2).fingerprint()
    assert "only with it" in refusal(staged(order=order), num_ranks=2)
    assert "only with it" in refusal(staged(schedule="searched"), num_ranks=2)
    assert "every pass" in refusal(staged(schedule="searched", order=order), num_ranks=2)  # of 4 micro-batches


def test_plans_with_stages_keep_the_fingerprint_that_they_had_before_orders() -> None:
    data = to_data(staged())
    del data["pipeline"]["order"]
    assert from_data(Plan, data, "plan").fingerprint() == staged().fingerprint()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"comm": CommPlan(transport="mpi")}, "transport 'mpi'"),
        ({"comm": CommPlan(reducer="scheduled")}, "reducer 'scheduled'"),
        ({"compression": CompressionPlan(codec="fp16")}, "codec 'fp16'"),
        ({"batch": BatchPlan(samples=(64, 64), sync_norm=True)}, "sync_norm"),
        (
            {"pipeline": PipelinePlan(first_ops=(0,), stage_ranks=((0, 1),), micro_batches=1, tensor_parallel=2)},
            "use 1",
        ),
    ],
)
def test_what_a_pipeline_does_not_run_with_is_refused(changed, said) -> None:
    staged().check_runnable()
    with pytest.raises(SpecError, match=said):
        dataclasses.replace(staged(), **changed).check_runnable()
