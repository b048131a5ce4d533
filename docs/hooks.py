"""Checks of `make docs` beside those of mkdocs: every parameter of the public API is described."""

from __future__ import annotations

from typing import Any

from mkdocs.exceptions import PluginError

from tests.docstrings import undocumented


def on_pre_build(config: Any) -> None:  # noqa: ARG001
    """Stop the build if a public function lacks the description of a parameter."""
    if missing := undocumented():
        raise PluginError("not described in its docstring: " + ", ".join(missing))
