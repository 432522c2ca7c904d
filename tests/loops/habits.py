"""The table of what people do in training loops. A new habit is one entry: its probability, its options, what it renders.

Entries are rendered in the order of the table; later ones stand around the lines of earlier ones. `params` are the dense
parameters of all models in the script, `norm` is a number that is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.loops import changes, renders
from tests.loops.blocks import NORMS
from tests.loops.description import Options
from tests.loops.optimizers import OPTIMIZERS
from tests.loops.script import Script


@dataclass(frozen=True, kw_only=True, slots=True)
class Habit:
    """Something that some loops do."""

    share: float
    """How likely a loop has it."""
    render: Callable[[Script, Options], None]
    options: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    forbids: tuple[str, ...] = ()
    """Other features that cannot be in the same loop."""


def lines(slot: str, *templates: str) -> Callable[[Script, Options], None]:
    """A render that adds lines, with the options filled in."""

    def render(script: Script, options: Options) -> None:
        script.add(slot, *(template.format(**options) for template in templates))

    return render


_NOT_SAVED = (
    "late_group",
    "new_head",
    "ema",
    "noise",
    "scaler",
    "buffer",
    "skip_backward",
    "rollback",
    "averaged_model",
    "LBFGS",
)
"""Loops that keep more than a checkpoint has, or may never come to the step it is made at."""
_USES_GRADIENTS = (
    *("scaler", "log_norm", "log_one", "noise", "zero_layer", "halve", "drop"),
    *("clip_norm", "clip_value", "step_hook", "skip_loud_step", "NormSGD"),
)
_STEPS = (1, 2, 3, 4)
_WITH_SCHEDULER = ("batch_schedule", "epoch_schedule", "one_cycle", "plateau")
_SCHEDULERS = {
    "StepLR": "StepLR(optimizer, 2, gamma=0.5)",
    "Cosine": "CosineAnnealingLR(optimizer, T_max=8)",
    "warm-up": "LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 4))",
    "chained": "SequentialLR(optimizer, [LinearLR(optimizer, 0.3, total_iters=2), ExponentialLR(optimizer, 0.9)], [2])",
}

HABITS: dict[str, Habit] = {
    # what the job is given
    "sync_norm": Habit(share=0.6, render=lambda *_: None),
    "critic": Habit(share=0.06, render=renders.critic, forbids=("accumulate", "scaler", "autocast", "closure")),
    "two_models": Habit(
        share=0.06, render=renders.two_models, forbids=("critic", "Muon", "groups", "new_head", "LBFGS")
    ),
    "groups": Habit(share=0.15, render=lambda *_: None),
    "compiled": Habit(share=0.01, render=renders.compiled, forbids=("new_head", "unfreeze", "critic", "two_models")),
    # data
    "short_batch": Habit(share=0.3, render=lambda *_: None, options={"more": (1, 2, 3)}),
    "drop_last": Habit(share=0.08, render=renders.drop_last),
    "epoch_argument": Habit(share=0.3, render=renders.epoch_argument),
    "no_shuffle": Habit(share=0.08, render=renders.no_shuffle),
    "token_weights": Habit(
        share=0.12, render=renders.token_weights, forbids=("critic", "batch_norm", "batch_norm_conv")
    ),
    "work": Habit(share=0.1, render=renders.work, options={"of": (1, 2)}),
    "own_loader": Habit(
        share=0.06,
        render=renders.own_loader,
        forbids=(
            "drop_last",
            "epoch_argument",
            "no_shuffle",
            "token_weights",
            "work",
            "resplit",
            "resume",
            "short_batch",
        ),
    ),
    "sampler": Habit(
        share=0.05,
        render=renders.sampler,
        options={"order": ("range(len(data))[::-1]", "torch.arange(len(data)).roll(3).tolist()")},
        forbids=("own_loader", "no_shuffle"),
    ),
    "loader": Habit(
        share=0.08,
        render=renders.loader,
        options={"how": ("shuffle=True", "shuffle=False", "shuffle=True, drop_last=True")},
        forbids=("own_loader", "no_shuffle", "sampler", "drop_last", "workers"),
    ),
    "stream": Habit(
        share=0.05,
        render=renders.stream,
        forbids=("own_loader", "no_shuffle", "sampler", "loader", "work", "token_weights", "workers"),
    ),
    "kept_batches": Habit(share=0.1, render=renders.kept_batches, forbids=("own_loader", "epoch_argument", "stream")),
    "workers": Habit(share=0.01, render=renders.workers, forbids=("own_loader", "resume")),
    # forward and backward
    "two_forwards": Habit(
        share=0.08, render=renders.two_forwards, forbids=("batch_norm", "batch_norm_conv", "token_weights")
    ),
    "autocast": Habit(
        share=0.03,
        render=renders.autocast,
        forbids=("critic", "scaler", "Muon", "Adafactor", "Rprop", "buffer", "compiled"),
    ),
    "manual_decay": Habit(
        share=0.06, render=lines("forward", "loss = loss + 0.001 * sum(p.abs().square().sum() for p in params)")
    ),
    "penalty": Habit(
        share=0.04,
        render=renders.penalty,
        forbids=(  # the penalty is a mean over samples, which token weights would weigh as one over tokens
            *(*NORMS, "recompute", "attention", "transformer", "twice", "bf16", "compiled", "autocast", "critic"),
            "token_weights",
        ),
    ),
    "tensor_hook": Habit(
        share=0.05, render=lines("after_model", "model.head.weight.register_hook(lambda gradient: gradient * 0.5)")
    ),
    "twice": Habit(share=0.06, render=renders.twice, forbids=("recompute", "scaler")),
    "skip_backward": Habit(share=0.08, render=renders.skip_backward, options={"at": (1, 2)}),
    # gradients
    "scaler": Habit(share=0.08, render=renders.scaler, forbids=("not_zeroed", "skip_step", "skip_loud_step", "sparse")),
    "log_norm": Habit(share=0.2, render=lines("gradients", "log.append(norm_of(params))")),
    "log_one": Habit(
        share=0.12,
        render=lines("gradients", "log.append(float(model.head.weight.grad.norm()))"),
        forbids=("skip_backward",),
    ),
    "noise": Habit(share=0.08, render=renders.noise),
    "zero_layer": Habit(share=0.08, render=renders.zero_layer),
    "halve": Habit(share=0.08, render=renders.halve),
    "drop": Habit(share=0.08, render=lines("gradients", "model.enter.bias.grad = None")),
    "clip_norm": Habit(
        share=0.25,
        render=lines("gradients", "log.append(float(nn.utils.clip_grad_norm_(params, {limit})))"),
        options={"limit": ("0.05", "0.5", "1.0", "0.05 if step > 3 else 1e9")},
    ),
    "clip_value": Habit(
        share=0.1,
        render=lines("gradients", "nn.utils.clip_grad_value_(params, {limit})"),
        options={"limit": (0.01, 0.1)},
    ),
    "step_hook": Habit(
        share=0.05,
        render=lines(
            "after_optimizer",
            "optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.head.parameters(), 0.1) and None)",
        ),
        forbids=("LBFGS", "closure", "skip_backward"),
    ),
    # steps
    "skip_step": Habit(share=0.08, render=lambda script, _: script.around("step", "if step % 3 != 2:")),
    "skip_loud_step": Habit(
        share=0.08,
        render=lambda script, options: script.around("step", f"if norm_of(params) < {options['limit']}:"),
        options={"limit": (0.3, 1.0)},
    ),
    "ema": Habit(share=0.15, render=renders.ema),
    "averaged_model": Habit(share=0.08, render=renders.averaged_model, forbids=("new_head", "weight_norm")),
    "clamp": Habit(share=0.1, render=renders.clamp),
    "log_weights": Habit(share=0.1, render=lines("after_step", "log.append(float(model.head.weight.detach().norm()))")),
    "batch_schedule": Habit(
        share=0.15, render=renders.batch_schedule, options={"make": tuple(_SCHEDULERS.values())}, forbids=("one_cycle",)
    ),
    "epoch_schedule": Habit(
        share=0.12,
        render=renders.epoch_schedule,
        options={"make": tuple(_SCHEDULERS.values())},
        forbids=("one_cycle", "batch_schedule"),
    ),
    "one_cycle": Habit(
        share=0.05,
        render=renders.batch_schedule,
        options={"make": ("OneCycleLR(optimizer, max_lr=0.1, total_steps=40, cycle_momentum=False)",)},
    ),
    "plateau": Habit(share=0.06, render=renders.plateau, forbids=("batch_schedule", "epoch_schedule", "one_cycle")),
    "manual_lr": Habit(share=0.08, render=changes.manual_lr, options={"at": _STEPS}, forbids=_WITH_SCHEDULER),
    "closure": Habit(share=0.03, render=lambda *_: None, forbids=(*OPTIMIZERS["LBFGS"].forbids, "LBFGS", "two_models")),
    # zero_grad
    "zeroing": Habit(share=0.4, render=renders.zeroing, options={"how": ("model", "zeros", "none", "model_zeros")}),
    "not_zeroed": Habit(share=0.07, render=lambda script, _: script.around("zero", "if step % 3 != 1:")),
    "zero_late": Habit(share=0.12, render=renders.zero_late, forbids=("accumulate", "skip_backward")),
    "accumulate": Habit(
        share=0.2,
        render=renders.accumulate,
        options={"k": (2, 3), "no_sync": ("backward", "both", "never"), "divide": (True, False)},
    ),
    "accumulate_inside": Habit(  # all passes inside no_sync(), where gradients are this rank's own until step()
        share=0.05,
        render=renders.accumulate,
        options={"k": (2, 3), "no_sync": ("forgotten",), "divide": (True, False)},
        forbids=(
            "accumulate",
            *_USES_GRADIENTS,
            "critic",
            "zero_late",
            "skip_step",
            "skip_backward",
            "LBFGS",
            "closure",
        ),
    ),
    # changes while training
    "unfreeze": Habit(share=0.1, render=changes.unfreeze, options={"at": _STEPS}, forbids=("fused",)),
    "freeze": Habit(share=0.08, render=changes.freeze, options={"at": _STEPS}, forbids=("unfreeze",)),
    "late_group": Habit(
        share=0.1, render=changes.late_group, options={"at": _STEPS}, forbids=("Muon", "fused", *_WITH_SCHEDULER)
    ),
    "new_head": Habit(
        share=0.08,
        render=changes.new_head,
        options={"at": _STEPS},
        forbids=("resume", "Muon", "fused", *_WITH_SCHEDULER),
    ),
    "rollback": Habit(
        share=0.06, render=changes.rollback, options={"at": (1, 2)}, forbids=("new_head", "resume", "skip_backward")
    ),
    "resplit": Habit(share=0.15, render=changes.resplit, options={"at": _STEPS, "draw": tuple(range(6))}),
    "switch": Habit(share=0.15, render=changes.switch, options={"at": _STEPS, "draw": tuple(range(1000))}),
    "evaluate": Habit(share=0.2, render=changes.evaluate, options={"slot": ("after_step", "epoch_end")}),
    "resume": Habit(share=0.08, render=changes.resume, options={"at": (2, 3, 4)}, forbids=_NOT_SAVED),
    "move": Habit(
        share=0.05,
        render=changes.resume,
        options={"at": (2, 3, 4), "to": (2, 3, 4), "draw": tuple(range(1000))},
        forbids=(*_NOT_SAVED, *NORMS, "resume", "resplit", "switch"),
    ),
    # wrong on purpose, for the test that it is noticed
    "scaled_on_one_rank": Habit(
        share=0.0, render=lines("after_loss", "if job.rank == 1:", "    loss = loss * (1 + 1e-7)")
    ),
}
