"""The table of optimizers: torch's and one of a user's own.

`eps` is far above rounding, so that a gradient which is zero but for rounding does not become a step of full length.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """An optimizer, as scripts construct it."""

    share: float
    variants: tuple[str, ...]
    """Arguments after the parameters."""
    extras: tuple[str, ...] = ("",)
    """More arguments, of which one is drawn."""
    forbids: tuple[str, ...] = ()


_MANY = ("", "", "", ", foreach=True", ", foreach=False", ", maximize=True")
_FUSED = (*_MANY, ", fused=True")

OPTIMIZERS: dict[str, Kind] = {
    "SGD": Kind(
        share=5,
        variants=(
            "lr=0.1",
            "lr=0.05, momentum=0.9",
            "lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01",
            "lr=0.05, momentum=0.8, dampening=0.1",
            "lr=0.1, weight_decay=0.05",
        ),
        extras=_FUSED,
    ),
    "Adam": Kind(
        share=2, variants=("lr=0.01, eps=1e-3", "lr=0.01, eps=1e-3, amsgrad=True, weight_decay=0.01"), extras=_FUSED
    ),
    "AdamW": Kind(share=2, variants=("lr=0.01, eps=1e-3", "lr=0.02, eps=1e-3, weight_decay=0.1"), extras=_FUSED),
    "NAdam": Kind(share=1, variants=("lr=0.01, eps=1e-3",), extras=_MANY),
    "RAdam": Kind(share=1, variants=("lr=0.01, eps=1e-3",), extras=_MANY),
    "Adamax": Kind(share=1, variants=("lr=0.01, eps=1e-3",), extras=_MANY),
    "Adagrad": Kind(share=1, variants=("lr=0.02, eps=1e-3", "lr=0.02, eps=1e-3, lr_decay=0.1"), extras=_FUSED),
    "Adadelta": Kind(share=1, variants=("lr=0.5, eps=1e-3",), extras=_MANY),
    "RMSprop": Kind(
        share=1, variants=("lr=0.01, eps=1e-3", "lr=0.01, eps=1e-3, momentum=0.5, centered=True"), extras=_MANY
    ),
    "Rprop": Kind(share=0.5, variants=("lr=0.01",), extras=_MANY, forbids=("noise", "zero_layer", "unfreeze")),
    "ASGD": Kind(share=1, variants=("lr=0.05, t0=2", "lr=0.05, lambd=0.01"), extras=_MANY),
    "Adafactor": Kind(share=1, variants=("lr=0.01, eps=(1e-3, 1e-3)",)),
    "LBFGS": Kind(
        share=0.7,
        variants=("lr=0.3, max_iter=3, history_size=5",),
        forbids=(
            *("groups", "clip_norm", "clip_value", "noise", "zero_layer", "halve", "drop", "scaler", "accumulate"),
            *(
                "skip_step",
                "skip_loud_step",
                "skip_backward",
                "late_group",
                "new_head",
                "critic",
                "unfreeze",
                "zeroing",
            ),
            *(
                "autocast",
                "one_cycle",
                "resume",
                "move",
                "two_models",
                "twice",
                "log_norm",
                "log_one",
                "not_zeroed",
                "zero_late",
                "sparse",
                "buffer",
            ),
        ),
    ),
    "Muon": Kind(share=0.4, variants=("lr=0.02, eps=1e-3",), forbids=("groups", "one_cycle")),
    "NormSGD": Kind(share=1, variants=("lr=0.1",)),
}
"""`Muon` takes the matrices only; the others get AdamW, as its documentation recommends."""

OWN_OPTIMIZER = '''
class NormSGD(torch.optim.Optimizer):
    """Steps get shorter where the norm of all gradients is large."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure else None
        with_grad = [(p, group["lr"]) for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.sqrt(sum(p.grad.abs().square().sum() for p, _ in with_grad)) if with_grad else 0.0
        for p, lr in with_grad:
            p.add_(p.grad, alpha=-lr / (1.0 + float(norm)))
        return loss
'''
SPARSE_OPTIMIZERS = ("SparseAdam({params}, lr=0.02, eps=1e-3)", "SGD({params}, lr=0.1)", "Adagrad({params}, lr=0.05)")
