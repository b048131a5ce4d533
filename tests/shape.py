"""`python -m tests.shape`: how long files and functions are, what a folder shows, and which modules import each other in a circle.

Imports inside functions count; those for type checkers do not, as they never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[1]
TOPS = ("formats", "transcode")


@dataclass(frozen=True)
class Shape:
    """file_lines, function_lines: of each. entries: what each top folder shows. circle: modules that import each other."""

    file_lines: dict[str, int]
    function_lines: dict[str, int]
    entries: dict[str, int]
    circle: list[str]


def shape() -> Shape:
    modules = {
        "vidprep." + ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for top in TOPS
        for path in sorted((ROOT / top).rglob("*.py"))
    }
    trees = {name: ast.parse(path.read_text()) for name, path in modules.items()}
    graph = {name: set(_imported(tree)) & modules.keys() - {name} for name, tree in trees.items()}
    circle: list[str] = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
    return Shape(
        {name: len(path.read_text().splitlines()) for name, path in modules.items()},
        {
            f"{name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
            for name, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
        },
        {top: sum(path.name[0] not in "_." or path.suffix == ".py" for path in (ROOT / top).iterdir()) for top in TOPS},
        circle,
    )


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from _imported(node)


def main() -> None:
    found = shape()
    files, functions = found.file_lines, found.function_lines
    print(
        f"{len(files)} files: median {median(files.values()):.0f} lines, longest {max(files.values())} ({_longest(files)})"
    )
    print(
        f"{len(functions)} functions: nine in ten below {quantiles(functions.values(), n=10)[-1]:.0f} lines, "
        f"longest {max(functions.values())} ({_longest(functions)})"
    )
    print("entries: " + ", ".join(f"{top}/ {count}" for top, count in found.entries.items()))
    print(f"{int(bool(found.circle))} circles {' -> '.join(found.circle)}".rstrip())


def _longest(lines: dict[str, int]) -> str:
    return max(lines, key=lambda name: lines[name])


if __name__ == "__main__":
    main()
