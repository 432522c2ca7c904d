"""Methods that assign layers to types, by name: for `autotune provision --method`. Nothing heavy is loaded here."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.workloads.plan.choices import Registry


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """How layers are assigned."""

    name: str
    text: str
    """One line for documentation."""
    run: str
    """"module:function" of an Asked, which answers a Chosen (`autotune.provision.judge`)."""


METHODS: Registry[Method] = Registry("provisioning method")
for _name, _text, _run in (
    ("exact", "branch and bound on an interval programme: proven", "autotune.provision.exact_method:exact"),
    ("brute-force", "every assignment, where there are at most 1,000,000: proven", "autotune.provision.exact_method:brute_force"),
    ("rl", "a policy learned for this problem: LSTM over layers, REINFORCE with a moving baseline", "autotune.provision.policy:learned"),
    ("genetic", "tournaments, two-point recombination, mutation", "autotune.provision.genetic:genetic"),
    ("bayes", "Optuna's TPE over the types of all layers", "autotune.jobs.provision.bayes:bayes"),
    ("greedy", "each layer the type on which it alone costs least", "autotune.provision.baselines:greedy"),
    ("cpu-only", "all layers on one CPU type", "autotune.provision.baselines:cpu_only"),
    ("accelerator-only", "all layers on one accelerator type", "autotune.provision.baselines:accelerator_only"),
    ("first-layer-cpu", "the first layer on a CPU type, the rest on one accelerator type", "autotune.provision.baselines:first_layer_cpu"),
):  # fmt: skip
    METHODS.register(Method(name=_name, text=_text, run=_run))
