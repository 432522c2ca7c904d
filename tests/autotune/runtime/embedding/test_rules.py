"""Rules that are not what torch's optimizers do are refused; what they do is compared in test_model_tables."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, SparseAdam

from autotune.runtime.embedding.rules import AdagradRule, LazyAdamRule, RowWiseAdagradRule, SgdRule, rule_of
from autotune.workloads.errors import SpecError
from autotune.workloads.models.row_wise_adagrad import RowWiseAdagrad


@pytest.fixture
def table() -> nn.Parameter:
    return nn.Parameter(torch.zeros(3, 2))


def test_the_rule_is_that_of_the_optimizer(table: nn.Parameter) -> None:
    other = nn.Parameter(torch.zeros(1))
    groups = [{"params": [table], "lr": 0.5}, {"params": [other]}]
    assert rule_of(SGD(groups, lr=0.1), [table]) == SgdRule(lr=0.5)
    assert rule_of(Adagrad([table], lr=0.2, eps=1e-8), [table]) == AdagradRule(lr=0.2, eps=1e-8)
    assert rule_of(RowWiseAdagrad([table], lr=0.2), [table]) == RowWiseAdagradRule(lr=0.2, eps=1e-10)
    adam = rule_of(SparseAdam([table], lr=0.2), [table])
    assert adam == LazyAdamRule(lr=0.2, betas=(0.9, 0.999), eps=1e-8)
    assert [rule.state_width(4) for rule in (SgdRule(lr=1.0), AdagradRule(lr=1.0, eps=0.0), adam)] == [0, 4, 8]


def test_what_changes_untouched_rows_is_refused(table: nn.Parameter) -> None:
    for optimizer, message in (
        (Adam([table]), "Adam, which changes rows that a step does not touch"),
        (SGD([table], lr=0.1, momentum=0.9), "momentum is 0.9"),
        (Adagrad([table], weight_decay=0.1), "weight_decay is 0.1"),
    ):
        with pytest.raises(SpecError, match=message):
            rule_of(optimizer, [table])


def test_tables_share_their_options(table: nn.Parameter) -> None:
    other = nn.Parameter(torch.zeros(1, 2))
    optimizer = SGD([{"params": [table], "lr": 0.5}, {"params": [other]}], lr=0.1)
    with pytest.raises(SpecError, match="one parameter group"):
        rule_of(optimizer, [table, other])
