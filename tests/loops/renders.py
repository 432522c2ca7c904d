"""What the longer habits render in a step; see the table in `habits`."""

from __future__ import annotations

from tests.loops.description import Options
from tests.loops.script import Script

_LATER = ("gradients", "step", "after_step")


def critic(script: Script, _: Options) -> None:
    """A second model that is trained against the first, as in a GAN."""
    script.models.append("critic")
    script.optimizers.append("critic_optimizer")
    script.add("after_model", "critic = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))")
    script.add("after_optimizer", "critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.5)")
    script.add("forward", "loss = loss - 0.1 * critic(outputs).mean()")
    script.add(
        "after_step",
        "critic_optimizer.zero_grad()",
        "critic_loss = critic(outputs.detach()).mean() - critic(F.one_hot(y, 3).to(x.dtype)).mean()",
        "critic_loss.backward()",
        "critic_optimizer.step()",
        "log.append(float(job.mean(critic_loss.detach())))",
    )


def two_models(script: Script, _: Options) -> None:
    """The head's last layer is a model and has an optimizer of its own."""
    script.models.append("last")
    script.optimizers.append("last_optimizer")
    script.add("after_model", "last = nn.Linear(3, 3)")
    script.add("after_optimizer", "last_optimizer = torch.optim.Adam(last.parameters(), lr=0.01, eps=1e-3)")
    script.replace("forward", "outputs = model(x, t, step)", "outputs = last(model(x, t, step))")
    script.add("zero", "last_optimizer.zero_grad()")
    script.add("step", "last_optimizer.step()")


def compiled(script: Script, _: Options) -> None:
    script.add("job_start", "compiled = torch.compile(model, backend='eager')")
    script.replace("forward", "model(", "compiled(")


def drop_last(script: Script, _: Options) -> None:
    script.batch_arguments.append("drop_last=True")


def epoch_argument(script: Script, _: Options) -> None:
    script.batch_arguments.append("epoch=epoch")


def no_shuffle(script: Script, _: Options) -> None:
    script.batch_arguments.append("shuffle=False")


def workers(script: Script, _: Options) -> None:
    script.batch_arguments.append("num_workers=1")


def sampler(script: Script, options: Options) -> None:
    script.batch_arguments.append(f"sampler={options['order']}")


def loader(script: Script, options: Options) -> None:
    """A torch DataLoader, whose parts the job uses."""
    script.add("imports", "from torch.utils.data import DataLoader")
    script.add("setup", f"loader = DataLoader(data, batch_size={script.loop.batch}, {options['how']})")
    script.source = "loader"


def stream(script: Script, _: Options) -> None:
    """A data set that can only be iterated."""
    script.add("imports", "from torch.utils.data import IterableDataset")
    stream_class = ["class Stream(IterableDataset):", "    whole = make_data({count})", "", "    def __iter__(self):"]
    script.add("classes", *(line.format(count=script.loop.num_data) for line in stream_class))
    script.add("classes", "        return iter(self.whole[index] for index in range(len(self.whole)))", "", "")
    script.add("setup", "stream = Stream()")
    script.source = "stream"


def kept_batches(script: Script, _: Options) -> None:
    """Requested once: a second iteration is the next epoch."""
    script.kept_batches = True
    script.add("job_start", "log.append(len(batches))")


def token_weights(script: Script, _: Options) -> None:
    """The loss is a mean over tokens, of which samples have different numbers."""
    script.add("setup", "tokens = 1.0 + (data.tensors[1] > 7).sum(1)")
    script.batch_arguments.append("loss_weights=tokens.tolist()")
    place = script.slots["forward"].index("loss = F.cross_entropy(outputs, y)")
    script.slots["forward"][place : place + 1] = [
        "count = 1.0 + (t > 7).sum(1)",
        "loss = (F.cross_entropy(outputs, y, reduction='none') * count).sum() / count.sum()",
    ]


def work(script: Script, options: Options) -> None:
    script.batch_arguments.append(f"work=[1.0 + (index * {options['of']}) % 5 for index in range(len(data))]")


def own_loader(script: Script, _: Options) -> None:
    """A loader of the script's own, with job.count() for the samples of this rank."""
    script.add(
        "setup",
        "def own_batches(job):",
        "    split = {1: [sum(SAMPLES)]}.get(job.size, SAMPLES)",
        "    for start in range(0, len(data), sum(split)):",
        "        first = start + sum(split[: job.rank])",
        "        job.count(split[job.rank])",
        "        yield data[first : first + split[job.rank]]",
    )


def two_forwards(script: Script, _: Options) -> None:
    """Two forward passes, one backward."""
    script.add("forward", "loss = loss + 0.1 * model(x.flip(1), t, step).square().mean()")


def autocast(script: Script, _: Options) -> None:
    script.replace("forward", "cross_entropy(outputs", "cross_entropy(outputs.float()")
    script.around("forward", "with torch.autocast('cpu', dtype=torch.bfloat16):")


def twice(script: Script, _: Options) -> None:
    script.put("backward", "loss.backward(retain_graph=True)", "loss.backward()")


def penalty(script: Script, _: Options) -> None:
    """On the gradient of the outputs by the inputs: a backward pass through a backward pass."""
    script.slots["forward"].insert(0, "x.requires_grad_()")
    script.add(
        "forward",
        "(slope,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)",
        "loss = loss + 0.1 * slope.square().sum(1).mean()",
    )


def skip_backward(script: Script, options: Options) -> None:
    script.add("after_loss", f"if step % 4 == {options['at']}:", "    step += 1", "    continue")


def scaler(script: Script, _: Options) -> None:
    script.add("after_optimizer", "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0, growth_interval=3)")
    script.replace("backward", "loss.backward(", "scaler.scale(loss).backward(")
    for name in script.optimizers:
        script.add("gradients", f"scaler.unscale_({name})")
        script.replace("step", f" {name}.step()", f" scaler.step({name})")
        script.slots["step"] = [
            line if line != f"{name}.step()" else f"scaler.step({name})" for line in script.slots["step"]
        ]
    script.add("step", "scaler.update()")


def noise(script: Script, _: Options) -> None:
    script.add("setup", "noise = torch.Generator().manual_seed(5)")
    script.add(
        "gradients",
        "for p in params:",
        "    if p.grad is not None:",
        "        p.grad.add_(0.01 * torch.randn(p.shape, dtype=p.dtype, generator=noise))",
    )


def zero_layer(script: Script, _: Options) -> None:
    script.add("gradients", "if model.enter.weight.grad is not None:", "    model.enter.weight.grad.zero_()")


def halve(script: Script, _: Options) -> None:
    script.add(
        "gradients",
        "if model.head.weight.grad is not None:",
        "    model.head.weight.grad = model.head.weight.grad * 0.5",
    )


def ema(script: Script, _: Options) -> None:
    script.add("job_start", "ema = {name: p.detach().clone() for name, p in model.named_parameters()}")
    script.add(
        "after_step",
        "with torch.no_grad():",
        "    for name, p in model.named_parameters():",
        "        ema.setdefault(name, p.clone()).lerp_(p, 0.1)",
    )
    script.saved.append("ema")


def averaged_model(script: Script, _: Options) -> None:
    script.add("job_start", "averaged = torch.optim.swa_utils.AveragedModel(model)")
    script.add("after_step", "if step > 2:", "    averaged.update_parameters(model)")
    script.saved.append("averaged.state_dict()")


def clamp(script: Script, _: Options) -> None:
    script.add("after_step", "with torch.no_grad():", "    model.head.weight.clamp_(-0.3, 0.3)")


def batch_schedule(script: Script, options: Options) -> None:
    _schedule(script, options["make"])
    script.add("after_step", "scheduler.step()")


def epoch_schedule(script: Script, options: Options) -> None:
    _schedule(script, options["make"])
    script.add("epoch_end", "scheduler.step()")


def plateau(script: Script, _: Options) -> None:
    _schedule(script, "ReduceLROnPlateau(optimizer, factor=0.5, patience=0)")
    script.add("epoch_end", "scheduler.step(mean_loss)")


def _schedule(script: Script, make: str) -> None:
    script.add("imports", "from torch.optim.lr_scheduler import *")
    script.add("after_optimizer", f"scheduler = {make}")
    script.schedulers.append("scheduler")


def zeroing(script: Script, options: Options) -> None:
    """Every way to begin with no gradients."""
    loops = [f"for p in {name}.parameters():\n    p.grad = None" for name in script.models]
    ways = {
        "model": [f"{name}.zero_grad()" for name in script.models],
        "model_zeros": [f"{name}.zero_grad(set_to_none=False)" for name in script.models],
        "zeros": [f"{name}.zero_grad(set_to_none=False)" for name in script.optimizers if name != "critic_optimizer"],
        "none": [line for statement in loops for line in statement.split("\n")],
    }
    script.put("zero", *ways[options["how"]])


def zero_late(script: Script, _: Options) -> None:
    """Gradients are deleted after the step, not before the backward pass."""
    script.zero_after_step = True


def accumulate(script: Script, options: Options) -> None:
    """One step for k micro-batches."""
    k, no_sync = options["k"], options["no_sync"]
    script.around("zero", f"if step % {k} == 0:")
    if options["divide"]:
        script.add("after_loss", f"loss = loss / {k}")
    script.add("imports", "from contextlib import nullcontext")
    inside = (
        "with job.no_sync():"
        if no_sync == "forgotten"
        else f"with job.no_sync() if step % {k} != {k - 1} else nullcontext():"
    )
    if no_sync == "both":
        script.around("forward", inside)
    if no_sync != "never":
        script.around("backward", inside)
    for slot in _LATER:
        script.around(slot, f"if step % {k} == {k - 1}:")
