"""The version on every page, and a check of `make docs` beside those of mkdocs: every parameter of the public API is described."""

from __future__ import annotations

from typing import Any

from mkdocs.exceptions import PluginError

import vidprep
from tests.docstrings import undocumented


def on_config(config: Any) -> None:
    """Show the version at the foot of every page; without a repository there is nothing to edit."""
    config.copyright = f"vidprep {vidprep.__version__}"
    if not config.repo_url:
        config.edit_uri = None


def on_pre_build(config: Any) -> None:  # noqa: ARG001
    """Stop the build if a public function lacks the description of a parameter."""
    if missing := undocumented():
        raise PluginError("not described in its docstring: " + ", ".join(missing))
