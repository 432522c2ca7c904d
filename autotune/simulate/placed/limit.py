"""A lower bound on the step time of every plan that computes each op of each sample once, wherever: pipelines, groups of ops.

It is the larger of two bounds:

- The least time in which all devices together can do the work, each op on the devices that are best at it: the linear program
  min T with Σ_k x_ok = batch for every op o and Σ_o c_ok·x_ok ≤ n_k·T for every kind k of device, of which there are n_k.
  c_ok is the least time per sample of the op on such a device, whatever the number of samples.
- The time of one sample that passes every op on the device that is best at it.

Messages are not counted: a plan on one device sends none, and which plans on several send least is a hard problem. So the bound
is far below the best plan where links are slow.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from autotune.results.store.record import Limit
from autotune.simulate.cost_tables import Costs, LikeRanks
from autotune.simulate.limit import least_op_sample_s
from autotune.simulate.task_graph import Floats

_SLACK = 1 - 1e-7
"""The solver's tolerance must not raise the bound."""


def placed_limit(costs: Costs, global_batch: int) -> Limit:
    """The bound for this batch on these devices."""
    kinds = np.array(LikeRanks(costs).kind_of_rank)
    first = [int(np.flatnonzero(kinds == kind)[0]) for kind in range(kinds.max() + 1)]
    sample_s = least_op_sample_s(costs.part(first), global_batch)
    counts = np.bincount(kinds).astype(np.float64)
    return Limit(
        compute_s=_shared_s(sample_s, counts) * global_batch * _SLACK,
        network_s=0.0,
        path_s=float(sample_s.min(axis=0).sum()),
    )


def _shared_s(sample_s: Floats, counts: Floats) -> float:
    """Least time for one sample, shared by all devices. `sample_s`: of every kind of device and op."""
    num_kinds, num_ops = sample_s.shape
    if num_kinds == 1:
        return float(sample_s.sum() / counts[0])
    scale = float(sample_s.max()) or 1.0
    columns = np.arange(num_kinds * num_ops)
    kind, op = np.divmod(columns, num_ops)
    rows = np.concatenate([kind, np.arange(num_kinds)])
    values = np.concatenate([sample_s.ravel() / scale, -counts])
    at_most = coo_matrix((values, (rows, np.concatenate([columns, np.full(num_kinds, len(columns))]))))
    equal = coo_matrix((np.ones(len(columns)), (op, columns)), shape=(num_ops, len(columns) + 1))
    found = linprog(
        np.append(np.zeros(len(columns)), 1.0),
        A_ub=at_most.tocsr(),
        b_ub=np.zeros(num_kinds),
        A_eq=equal.tocsr(),
        b_eq=np.ones(num_ops),
    )
    assert found.success, "all work fits on one device"
    return float(found.fun) * scale
