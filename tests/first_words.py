"""`make lint`: a function's docstring begins with a verb, a class's with a noun; neither with a word that hides the subject."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

RIDDLE = re.compile(
    r"(Also|As|Be|By|For|From|Has|Have|How|In|It|Nobody|None|Nor|Nothing|Of|On|Or|That|The same|Then|They|This|Those|To|Told"
    r"|What|When|Where|Which|Who|Whoever|Whose|Why)\b"
)
NOT_A_VERB = re.compile(r"(A|All|An|Each|Every|False|Its|Raises|Returns|The|True|Whether|Yields)\b")


def faults(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or not (text := ast.get_docstring(node)):
            continue
        is_verb = isinstance(node, ast.FunctionDef) and not any(
            "property" in ast.unparse(d) for d in node.decorator_list
        )
        if RIDDLE.match(text) or (is_verb and NOT_A_VERB.match(text)):
            yield f"{path}:{node.lineno}: {node.name}: begins with {text.split()[0]!r}"


if __name__ == "__main__":
    found = [
        line for top in ("formats", "transcode") for path in sorted(Path(top).rglob("*.py")) for line in faults(path)
    ]
    sys.exit("\n".join(found) or None)
