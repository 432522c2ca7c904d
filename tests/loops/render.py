"""The script of a loop: a plain torch training loop, which can be started as `mpirun -n N python FILE` or as `python FILE`."""

from __future__ import annotations

from tests.loops.blocks import BLOCKS
from tests.loops.description import Chosen, Loop
from tests.loops.habits import HABITS
from tests.loops.optimizers import OWN_OPTIMIZER
from tests.loops.plans import plan_expression, splits_and_plans
from tests.loops.script import Script, indented

_HEAD = '''"""Loop {seed} on {ranks} ranks: {features}."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset
{imports}
import autotune
from autotune.workloads.plan import BatchPlan, CommPlan, CompressionPlan, Plan

RANKS = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
SAMPLES = {samples}[RANKS]
torch.set_default_dtype(torch.{dtype})
torch.manual_seed({seed})


def make_data(count):
    draw = torch.Generator().manual_seed({seed} + count)
    x, t = torch.randn(count, 8, generator=draw), torch.randint(0, 20, (count, 5), generator=draw)
    return TensorDataset(x, t, torch.randint(0, 3, (count,), generator=draw))


def norm_of(params):
    return float(sum(p.grad.abs().square().sum() for p in params if p.grad is not None) ** 0.5)

'''


def render(loop: Loop) -> str:
    """The whole script. It leaves `log` and `results`, a dict of state dicts, behind."""
    script = fill(loop)
    head = _HEAD.format(
        seed=loop.seed,
        ranks=loop.ranks,
        features=", ".join(loop.features),
        imports="\n".join(dict.fromkeys(script.slots["imports"])),
        samples={ranks: split for ranks, (split, _) in splits_and_plans(loop).items()},
        dtype="float32" if loop.has("autocast") else "float64",
    )
    lines = [*_classes(script), "", "", *_body(script), "", *_end(loop)]
    return head + "\n".join(lines) + "\n"


def fill(loop: Loop) -> Script:
    """All lines by slot, before they are put together."""
    script = Script(loop)
    script.put("forward", "outputs = model(x, t, step)", "loss = F.cross_entropy(outputs, y)")
    script.put("backward", "loss.backward()")
    script.put("zero", "optimizer.zero_grad()")
    script.put("step", "optimizer.step()")
    for position, block in enumerate(loop.blocks):
        entry, options = BLOCKS[block.name], block.options | {"i": position}
        script.init += [line.format(**options) for line in entry.init]
        script.body += [line.format(**options) for line in entry.forward]
    _add_optimizers(script)
    chosen = {habit.name: habit for habit in loop.habits}
    for name, entry in HABITS.items():
        if name in chosen:
            entry.render(script, chosen[name].options)
    return script


def _add_optimizers(script: Script) -> None:
    """The main one, and one for what it cannot train."""
    loop, main = script.loop, script.loop.optimizer
    script.add("after_optimizer", f"optimizer = {_constructor(loop, main)}")
    if main.name == "NormSGD":
        script.add("classes", *OWN_OPTIMIZER.strip().splitlines(), "", "")
    if main.name == "Muon":
        rest = f"[p for n, p in model.named_parameters() if p.ndim != 2{_not_left_out(loop)}]"
        _second(script, f"torch.optim.AdamW({rest}, lr=0.01, eps=1e-3)")
    if sparse := next((block for block in loop.blocks if block.name == "sparse"), None):
        tables = "[p for n, p in model.named_parameters() if n.startswith('sparse')]"
        _second(script, "torch.optim." + sparse.options["optimizer"].format(params=tables), "sparse_optimizer")


def _second(script: Script, made: str, name: str = "rest_optimizer") -> None:
    script.optimizers.append(name)
    script.add("after_optimizer", f"{name} = {made}")
    script.add("zero", f"{name}.zero_grad()")
    script.add("step", f"{name}.step()")


def _constructor(loop: Loop, chosen: Chosen) -> str:
    what = "p for n, p in model.named_parameters() if "
    params = "model.parameters()"
    if chosen.name == "Muon":
        params = f"[{what}p.ndim == 2{_not_left_out(loop)}]"
    elif loop.has("groups"):
        rest = f"[{what}not n.startswith('head'){_not_left_out(loop)}]"
        params = f"[{{'params': model.head.parameters(), 'lr': 0.02}}, {{'params': {rest}}}]"
    elif left_out := _not_left_out(loop):
        params = f"[{what}{left_out.removeprefix(' and ')}]"
    module = "" if chosen.name == "NormSGD" else "torch.optim."
    return f"{module}{chosen.name}({params}, {chosen.options['arguments']}{chosen.options['extra']})"


def _not_left_out(loop: Loop) -> str:
    names = [name for name, feature in (("sparse", "sparse"), ("late", "late_group")) if loop.has(feature)]
    return f" and not n.startswith({tuple(names)!r})" if names else ""


def _classes(script: Script) -> list[str]:
    forward = ["def forward(self, x, t, step):", *indented(["h = torch.tanh(self.enter(x))", *script.body])]
    init = ["super().__init__()", "self.enter = nn.Linear(8, 8)", *script.init, "self.head = nn.Linear(8, 3)"]
    model = ["def __init__(self):", *indented(init), "", *forward, "    return self.head(h)"]
    return ["", *script.slots["classes"], "class Model(nn.Module):", *indented(model)]


def _body(script: Script) -> list[str]:
    """From the data to the end of training; in a function where training is interrupted."""
    loop, slots = script.loop, script.slots
    setup = [f"data = make_data({loop.num_data})", *slots["setup"]]
    models, optimizers = (names[0] if len(names) == 1 else f"[{', '.join(names)}]" for names in _given(script))
    sync = ", sync_norm=True" if loop.has("sync_norm") else ""
    is_dense = " if not n.startswith('sparse')" if loop.has("sparse") else ""
    train = [
        "model = Model()",
        *slots["after_model"],
        *slots["after_optimizer"],
        f"params = [p for each in ({', '.join(script.models)},) for n, p in each.named_parameters(){is_dense}]",
        *_plans(loop),
        "step, log = 0, []",
        f"with autotune.parallelize({models}, {optimizers}, plan, global_batch={loop.batch}{sync}) as job:",
        *indented(_epochs(script)),
    ]
    saved = [f"'{name}': {name}.state_dict()" for name in script.models]
    results = f"{{{', '.join([*saved, *(f'{name.split(chr(46))[0]!r}: {name}' for name in script.saved)])}}}"
    if not loop.has("resume", "move"):
        return [*setup, *train, f"results = {results}"]
    checkpoint = f"os.path.join(os.environ.get('LOOP_FOLDER', '.'), 'checkpoint-{loop.seed}-{loop.ranks}.pt')"
    function = ["def train(resumed):", *indented([*train, f"return {results}, log"])]
    parts = [
        "if PART in ('', '1'):",
        "    results, log = train(resumed=False) or ({}, [])",
        "if PART in ('', '2'):",
        "    results, log = train(resumed=True)",
    ]
    setup += [f"CHECKPOINT = {checkpoint}", "PART = os.environ.get('PART', '')"]
    return [*setup, "", "", *function, "", "", *parts]


def _plans(loop: Loop) -> list[str]:
    """By number of ranks, where they need different ones."""
    plans = {ranks: plan for ranks, (_, plan) in splits_and_plans(loop).items()}
    made = {ranks: plan_expression(plan, "BatchPlan(samples=tuple(SAMPLES))") for ranks, plan in plans.items()}
    if len(set(made.values())) == 1:
        return [f"plan = {made[1]}"]
    lines = []
    for ranks, expression in made.items():
        lines += [f"if RANKS == {ranks}:", f"    plan = {expression}"]
    return lines


def _given(script: Script) -> tuple[list[str], list[str]]:
    return script.models, script.optimizers


def _epochs(script: Script) -> list[str]:
    slots, loop = script.slots, script.loop
    asked = f"job.batches({', '.join([script.source, *script.batch_arguments])})"
    if loop.has("own_loader"):
        asked = "own_batches(job)"
    if script.kept_batches:
        slots["job_start"][:0] = [f"batches = {asked}"]
    each = f"for x, t, y in {'batches' if script.kept_batches else asked}:"
    begins = "job.epoch, " if loop.has("resume", "move") else ""
    return [
        *slots["job_start"],
        f"for epoch in range({begins}{loop.epochs}):",
        *indented([each, *indented(_batch(script)), *slots["epoch_end"]]),
    ]


def _batch(script: Script) -> list[str]:
    slots = script.slots
    before = [] if script.zero_after_step else slots["zero"]
    after = slots["zero"] if script.zero_after_step else []
    passes = [*before, *slots["forward"], *slots["after_loss"], *slots["backward"], *slots["gradients"]]
    if script.loop.has("LBFGS", "closure"):
        step = [
            "def closure():",
            *indented([*passes, "return job.mean(loss.detach())"]),
            "loss = optimizer.step(closure)",
        ]
        step += [f"{name}.step()" for name in script.optimizers[1:]]
    else:
        step = [*passes, *slots["step"]]
    logged = ["mean_loss = float(job.mean(loss.detach()))", "log.append(mean_loss)"]
    return [*slots["batch_start"], *step, *slots["after_step"], *after, *logged, "step += 1", *slots["batch_end"]]


def _end(loop: Loop) -> list[str]:
    """What shows a difference when the script is started without the driver."""
    total = "sum(v.abs().double().square().sum() for s in results.values() for v in s.values() if torch.is_tensor(v)) ** 0.5"
    return ["if __name__ == '__main__':", f"    print(f'{{RANKS}} ranks: norm {{float({total}):.15f}}, log {{log}}')"]
