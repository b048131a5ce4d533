"""Caches that let go of who owns them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import TypeVar
from weakref import WeakMethod

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def weak(method: Callable[[Key], Value]) -> Callable[[Key], Value]:
    """A bound method that does not keep its object alive: what an object holds of its own methods would.

    An object that refers to itself closes its files whenever the garbage collector comes by.
    """
    reference = WeakMethod(method)

    def call(key: Key) -> Value:
        bound = reference()
        assert bound is not None, "called by nobody but its object"
        return bound(key)

    return call


def kept(method: Callable[[Key], Value], count: int) -> Callable[[Key], Value]:
    """What a method of one argument gave for the `count` arguments that were asked for last. Thread-safe."""
    return lru_cache(maxsize=count)(weak(method))
