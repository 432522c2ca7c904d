"""What predictions get wrong, learned from what was measured: log(measured / predicted) as a Gaussian process.

Plans that are alike in what a simulator is likely to misjudge (how many messages, which transport, codec and reducer)
share their error. Around the mean error the process falls back, and becomes uncertain, where nothing like a plan has been
measured yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PRIOR = 0.15
"""How far predictions are expected to be off before anything is known, as a share."""
_LEAST_SPREAD = 0.03
_ENOUGH = 4
"""Cases from which on their own spread says how far predictions are off."""
_LEAST_NOISE = 0.003


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A plan that was predicted and measured."""

    features: tuple[float, ...]
    log_error: float
    noise: float
    """Standard error of the measurement, as a share."""


class Residual:
    """The error to expect of a prediction, given cases."""

    def __init__(self, cases: Sequence[Case]) -> None:
        errors = np.array([case.log_error for case in cases], np.float64)
        self._mean = float(np.median(errors)) if cases else 0.0
        self._spread = PRIOR
        if len(cases) >= _ENOUGH:
            self._spread = float(np.clip(np.abs(errors - self._mean).max(), _LEAST_SPREAD, PRIOR))
        self._features = np.array([case.features for case in cases], np.float64)
        self._weights: Floats = np.zeros(0)
        self._inverse: Floats = np.zeros((0, 0))
        if cases:
            noise = np.array([max(case.noise, _LEAST_NOISE) for case in cases])
            covariance = self._kernel(self._features, self._features) + np.diag(noise**2)
            self._inverse = np.asarray(np.linalg.inv(covariance), np.float64)
            self._weights = self._inverse @ (errors - self._mean)

    def expect(self, features: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of log(measured / predicted) for plans with these features."""
        wanted = np.array(features, np.float64)
        if not len(self._weights):
            return np.full(len(wanted), self._mean), np.full(len(wanted), PRIOR)
        shared = self._kernel(wanted, self._features)
        mean: Floats = self._mean + shared @ self._weights
        variance = self._spread**2 - np.einsum("ij,jk,ik->i", shared, self._inverse, shared)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        distances = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
        values: Floats = self._spread**2 * np.exp(-distances / 2)
        return values


def expected_gain(best_log: float, mean_log: Floats, spread: Floats) -> Floats:
    """Expected improvement over the best so far, as a share of its time (Jones et al. 1998, in logarithms)."""
    z = (best_log - mean_log) / spread
    bell = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    gain: Floats = (best_log - mean_log) * below + spread * bell
    return gain
