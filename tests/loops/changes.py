"""What habits render that change the job, the model or the plan while it trains; see the table in `habits`."""

from __future__ import annotations

import random

from tests.loops.blocks import NORMS
from tests.loops.description import Options
from tests.loops.plans import draw_plan, draw_split, plan_expression
from tests.loops.script import Script


def manual_lr(script: Script, options: Options) -> None:
    script.add(
        "batch_end",
        f"if step == {options['at']}:",
        "    for group in optimizer.param_groups:",
        "        group['lr'] *= 0.3",
    )


def rollback(script: Script, options: Options) -> None:
    """The model goes back to what it was two steps before."""
    at = options["at"]
    script.add(
        "batch_end",
        f"if step == {at}:",
        "    kept = {name: value.clone() for name, value in model.state_dict().items()}",
    )
    script.add("batch_end", f"if step == {at + 2}:", "    model.load_state_dict(kept)")


def unfreeze(script: Script, options: Options) -> None:
    script.add("after_model", "model.enter.requires_grad_(False)")
    script.add("batch_start", f"if step == {options['at']}:", "    model.enter.requires_grad_(True)")


def freeze(script: Script, options: Options) -> None:
    at = options["at"]
    script.add("batch_start", f"if step in ({at}, {at + 2}):", f"    model.enter.requires_grad_(step != {at})")


def late_group(script: Script, options: Options) -> None:
    """A layer that the optimizer gets later."""
    script.init.append("self.late = nn.Linear(8, 8)")
    script.body.append("h = h + torch.tanh(self.late(h))")
    group = "{'params': list(model.late.parameters()), 'lr': 0.03}"
    script.add("batch_start", f"if step == {options['at']}:", f"    optimizer.add_param_group({group})")


def new_head(script: Script, options: Options) -> None:
    """A module that the model gets later."""
    script.init.append("self.extra = None")
    script.body.append("h = h if self.extra is None else h + torch.tanh(self.extra(h))")
    script.add(
        "batch_start",
        f"if step == {options['at']}:",
        "    torch.manual_seed(7)",
        "    model.extra = nn.Linear(8, 8)",
        "    optimizer.add_param_group({'params': list(model.extra.parameters())})",
    )


def resplit(script: Script, options: Options) -> None:
    split = draw_split(
        random.Random(options["draw"]), script.loop.batch, script.loop.ranks, lowest=min(script.loop.samples)
    )
    script.add(
        "batch_end",
        f"if step == {options['at']} and RANKS > 1:",
        f"    job.resplit(job.next_step, {split})",
    )


def switch(script: Script, options: Options) -> None:
    """Between two steps: not while gradients of micro-batches are accumulated."""
    plan = draw_plan(random.Random(options["draw"]), script.loop.ranks, script.loop.features)
    k = script.loop.options("accumulate")["k"] if script.loop.has("accumulate") else 1
    at = -(-options["at"] // k) * k
    script.add(
        "batch_end",
        f"if step == {at} and RANKS > 1:",
        f"    job.switch({plan_expression(plan, 'job.plan.batch')})",
    )


def evaluate(script: Script, options: Options) -> None:
    """On another data set, between two steps."""
    whole_batches = script.loop.has(*NORMS) and not script.loop.has("sync_norm")  # ranks have buffers of their own
    script.add("setup", f"held_out = make_data({2 * script.loop.batch if whole_batches else 13})")
    call = next(line for line in script.slots["forward"] if "outputs = " in line).strip()
    call = call.replace("(x, t, step)", "(a, b, 1)").replace("outputs = ", "")
    lines = [
        "model.eval()",
        "with torch.no_grad():",
        "    for a, b, c in job.batches(held_out, shuffle=False):",
        f"        log.append(float(job.mean(F.cross_entropy({call}, c))))",
        "model.train()",
    ]
    if options["slot"] == "after_step":
        lines = ["if step % 4 == 3:", *(f"    {line}" for line in lines)]
    script.add("batch_end" if options["slot"] == "after_step" else "epoch_end", *lines)


def resume(script: Script, options: Options) -> None:
    """Rank 0 saves everything, and training goes on in another job; see `render`."""
    names = [*script.models, *script.optimizers, *script.schedulers, "job"]
    script.add("batch_end", f"if step == {options['at']} and not resumed:")
    script.add("batch_end", f"    state = [each.state_dict() for each in ({', '.join(names)},)]")
    script.add("batch_end", "    if job.rank == 0:", "        torch.save((state, step, log), CHECKPOINT)", "    return")
    script.add(
        "job_start",
        "if resumed:",
        "    state, step, log = torch.load(CHECKPOINT, weights_only=False)",
        f"    for each, kept in zip(({', '.join(names)},), state):",
        "        each.load_state_dict(kept)",
    )
