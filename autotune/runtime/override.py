"""Replacements of an object's methods, and hooks on modules, that copies of the object do not have.

A script may copy or save a model during training (a moving average, a checkpoint). The copy must be a plain model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Override:
    """An entry of an object's `__dict__` that replaces a method of its class; a copy of the object has the method."""

    def __init__(self, place: Any, name: str, call: Callable[..., Any]) -> None:
        self._place, self._name, self._call = place, name, call
        functools.update_wrapper(self, getattr(place, name))  # lr schedulers read attributes of `step`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @property
    def __self__(self) -> Any:
        """As a bound method has it."""
        return self._place

    @property
    def __func__(self) -> Callable[..., Any]:
        """As a bound method has it."""
        return _Unbound(self)

    def __reduce__(self) -> Any:
        return getattr, (self._place, self._name)


class _Unbound:
    """The function of an override, as `__func__` of a bound method."""

    def __init__(self, override: Override) -> None:
        self._override = override
        functools.update_wrapper(self, override)

    def __call__(self, _self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._override(*args, **kwargs)

    def __get__(self, _instance: Any, _owner: Any = None) -> Override:
        return self._override


class Hook:
    """A hook that does nothing in a copy."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _no_hook, ()


def _no_hook() -> Callable[..., None]:
    return _nothing


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """What a hook is in a copy."""
