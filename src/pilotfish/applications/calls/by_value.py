"""Tells which functions and classes are pickled by value. Most of them cannot be imported in a slot."""

from __future__ import annotations

import functools
import sys
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

CachedFunction = type(functools.lru_cache(len))
"""The type of functions with the decorator ``functools.cache`` or ``functools.lru_cache``."""


def is_pickled_by_value(value: Any) -> bool:
    """Returns whether a function or class is pickled by value. It is, if a slot cannot import it or if the user registered its module with
    cloudpickle."""
    module = sys.modules.get(value.__module__)
    if module is None or value.__module__ == "__main__" or value.__module__ in cloudpickle.list_registry_pickle_by_value():
        return True
    found: Any = module
    for part in getattr(value, "__qualname__", "?").split("."):
        found = getattr(found, part, None)
    return found is not value
