from __future__ import annotations

import torch
from torch import nn

from autotune.workloads.models.row_wise_adagrad import RowWiseAdagrad


def test_a_row_is_scaled_by_the_means_of_its_own_squares() -> None:
    table, bias = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2))
    optimizer = RowWiseAdagrad([table, bias], lr=0.1)
    for _ in range(2):
        table.grad, bias.grad = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, -1.0])
        optimizer.step()
    gone = 0.1 * (1 / 12.5**0.5 + 1 / 25**0.5)
    torch.testing.assert_close(table.data[0], 1 - gone * torch.tensor([3.0, 4.0]))
    assert table.data[1].tolist() == [1.0, 1.0]
    torch.testing.assert_close(bias.data, 1 - 0.1 * (1 + 1 / 2**0.5) * torch.tensor([1.0, -1.0]))
    assert optimizer.state[table]["sum"].shape == (3,)
