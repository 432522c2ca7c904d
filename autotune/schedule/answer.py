"""Output formats of an answer: the JSON of `autotune schedule`, a timeline, torch's CSV."""

from __future__ import annotations

from typing import Any

from autotune.profilers.timeline import Counter, Span, Timeline
from autotune.schedule.classic import find_chain
from autotune.schedule.search import Answer
from autotune.workloads.blocks import INPUT, WEIGHT, Block, BlockGraph, Timetable, half_name
from autotune.workloads.errors import SpecError
from autotune.workloads.pass_names import span_name


def answer_data(answer: Answer) -> dict[str, Any]:
    """The document that `autotune schedule --json` writes."""
    return {
        "period": answer.period_s,
        "period_lower_bound": answer.period_bound_s,
        "proven": answer.proven,
        "makespan": answer.replay.makespan_s,
        "makespan_lower_bound": answer.makespan_bound_s,
        "peak_memory": list(answer.replay.peak_memory),
        "order": [[[slot.block, slot.microbatch, slot.start_s] for slot in slots] for slots in answer.table.order],
        "winner": answer.winner,
        "seconds": answer.seconds,
        "micro_batches": answer.table.num_microbatches,
        "grid": answer.grid_s,
        "period_seconds": answer.period_seconds,
        "bubbles": list(answer.replay.bubbles),
        "portfolio": answer.portfolio_s,
    }


def as_timeline(table: Timetable) -> Timeline:
    """The schedule as spans, and what each device holds over time."""
    blocks = {block.name: block for block in table.graph.blocks}
    spans, counters = [], []
    for device, slots in enumerate(table.order):
        held, points = 0.0, [(0.0, 0.0)]
        for slot in slots:
            block = blocks[slot.block]
            held += block.memory
            points.append((slot.start_s, held))
            spans.append(
                Span(
                    rank=device,
                    track="compute",
                    kind=kind_of(block),
                    op=span_name(slot.block, slot.microbatch),
                    start_s=slot.start_s,
                    end_s=slot.start_s + block.seconds,
                )
            )
        counters.append(Counter(rank=device, name="memory held", unit="as given", points=tuple(points)))
    spans.sort(key=lambda span: (span.start_s, span.rank, span.end_s))
    return Timeline(spans=tuple(spans), counters=tuple(counters))


def kind_of(block: Block) -> str:
    """Forward allocates memory, backward frees it; a block that does neither counts as forward."""
    return "backward" if block.memory < 0 or block.part or block.split else "forward"


def torch_csv(graph: BlockGraph, table: Timetable) -> str:
    """The schedule of a chain as torch.distributed.pipelining reads it (`compute_only`): a row per rank, `2F0` for the forward
    of stage 2 of micro-batch 0, B for its backward, I and W for its halves. `graph` has unsplit backwards.
    """
    chain = find_chain(graph)
    if chain is None:
        raise SpecError(
            "--csv: the blocks are not a chain (forward through single devices, backward in reverse), and "
            "torch.distributed.pipelining runs chains only: use --json"
        )
    actions: dict[str, str] = {}
    for stage, block in enumerate(chain.forward):
        actions[graph.blocks[block].name] = f"{stage}F"
    for stage, block in enumerate(chain.backward):
        name = graph.blocks[block].name
        actions |= {name: f"{stage}B", half_name(name, INPUT): f"{stage}I", half_name(name, WEIGHT): f"{stage}W"}
    rows = (",".join(f"{actions[slot.block]}{slot.microbatch}" for slot in slots) for slots in table.order)
    return "\n".join(rows) + "\n"
