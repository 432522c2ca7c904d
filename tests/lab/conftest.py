"""Lab tests need Linux, root and iproute2; elsewhere they are skipped, with the reason."""

from __future__ import annotations

import pytest

from autotune.lab import kernel
from autotune.workloads.errors import SpecError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        kernel.check_possible()
    except SpecError as error:
        for item in items:
            if "tests/lab" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=str(error)))
