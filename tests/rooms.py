"""Lint of imports: modules that begin with _ are for their room alone, and no modules import each other, by name or late either."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BY_NAME = "import_module"


def modules() -> dict[str, ast.Module]:
    """The code of each module by its name; packages import what they hand on lazily."""
    files = [path for top in ("formats", "transcode") for path in (ROOT / top).rglob("*.py")]
    names = {path: ".".join(("vidprep", *path.relative_to(ROOT).with_suffix("").parts)) for path in files}
    return {name: ast.parse(path.read_text()) for path, name in names.items() if path.name != "__init__.py"}


def imports(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the modules that code imports: by statements, and by `import_module` of a text or of `f"package.{name}"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from {node.module, *(f"{node.module}.{each.name}" for each in node.names)} & known.keys()
        elif isinstance(node, ast.Import):
            yield from {each.name for each in node.names} & known.keys()
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == BY_NAME:
            for each in ast.walk(node.args[0]):
                if isinstance(each, ast.Constant) and isinstance(text := each.value, str):
                    yield from (
                        name for name in known if name == text or (text.endswith(".") and name.startswith(text))
                    )


def faults() -> Iterator[str]:
    known = modules()
    graph = {name: set(imports(tree, known)) - {name} for name, tree in known.items()}
    for name, used in graph.items():
        for other in used:
            room = other.split(".")[:3]
            if other.split(".")[-1].startswith("_") and name.split(".")[:3] != room:
                yield f"{name} imports {other}, which is for {'.'.join(room)} alone"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"modules import each other: {' <- '.join(error.args[1])}"


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or 0)
