"""What the documents say is so: commands parse, flags and columns are described, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from tests.docstrings import undocumented
from tests.generated import COLUMNS, FIGURES, TABLE, TYPES, columns, every_command, figures, keyword_types, table
from tests.helpers import make_clips

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *(f"docs/{each.name}" for each in sorted((ROOT / "docs").glob("*.md"))),
        "tests/bench/README.md",
    )
]
PLACES = re.compile(r"\b(SRC|DST|STORE|OUT|FILE|WORK)\b…?")


def commands(text: str) -> list[str]:
    """Return the lines of code blocks, and the pieces of tables in code, that are whole commands."""
    fenced = "\n".join(re.findall(r"^```\w+\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    shown = re.findall(r"^(?:\$ )?((?:\w+=\$\()?vidprep (?!: ).*)$", fenced, flags=re.MULTILINE)
    shown += re.findall(r"^\| [^|]*\| `(vidprep [^`]*)` \|$", text, flags=re.MULTILINE)
    return [line.partition("  #")[0].rstrip() for line in shown if re.match(r"vidprep [a-z]+ ", line)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_that_is_shown_parses(document: Path) -> None:
    for line in commands(document.read_text()):
        _, name, *words = shlex.split(PLACES.sub("x", line), comments=True)
        if "…" in words:
            continue
        command = every_command()[name]
        with click.Context(command) as context:
            command.parse_args(context, [word for word in words if word not in ("&&",)])


def test_generated_files_are_up_to_date() -> None:
    """`make generated` writes them: a flag stands in one place, which the table and the types of keywords are made of."""
    assert TYPES.read_text() == keyword_types()
    assert TABLE.read_text() == table()
    assert COLUMNS.read_text() == columns()
    assert FIGURES.read_text() == figures()


def test_every_parameter_of_the_public_api_is_described() -> None:
    assert undocumented() == []


EXAMPLES = """
import doctest
from vidprep.formats import PrefetchLoader, VideoDataset, clips_at_random_indices, open_store
from vidprep.transcode import burst, transcode
for used in (transcode, burst, open_store, VideoDataset, PrefetchLoader, clips_at_random_indices):
    found = doctest.DocTestParser().get_doctest(used.__doc__, {}, used.__name__, None, None)
    assert found.examples, used.__name__
    assert not doctest.DocTestRunner().run(found).failed, used.__name__
"""


@pytest.mark.long
def test_the_examples_of_docstrings_are_what_python_prints(tmp_path: Path) -> None:
    """Of the names that are used most, on the clips of docs/training.md."""
    made = make_clips(tmp_path / "raw", 2, 90, size=(320, 256))
    (made / "a").mkdir()
    (made / "c00.mp4").rename(made / "a" / "b.mp4")
    (made / "c01.mp4").rename(made / "c.mp4")
    ran = subprocess.run([sys.executable, "-c", EXAMPLES], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_folder_of_modules_is_packaged() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    modules = [path for top in ("formats", "transcode") for path in (ROOT / top).rglob("*.py")]
    assert set(listed) == {"vidprep", *("vidprep." + ".".join(path.relative_to(ROOT).parent.parts) for path in modules)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_are_not_broken(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        assert "://" in link or (document.parent / link).exists(), link


WRITTEN = [
    path
    for path in DOCUMENTS
    if path.parent.name in ("docs", ROOT.name) and path.stem not in ("CHANGELOG", "CONTRIBUTING", "options", "api")
]


def sentences(document: Path) -> list[int]:
    """Words in each sentence of the paragraphs and lists of a document."""
    text = re.sub(r"(?s)```.*?```", "", document.read_text())
    parts = re.split(r"\n\n|\n(?=- |\d\. )", re.sub(r"(?m)^(\||#|!|:::|    options:).*$", "\n", text))
    found = [each for part in parts for each in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*(\[])", part)]
    return [len(each.split()) for each in found if len(each.split()) > 2]


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.stem)
def test_sentences_are_short(document: Path) -> None:
    found = sentences(document)
    assert max(found) <= 40 and sum(found) / len(found) <= 25, (max(found), sum(found) / len(found))


def test_make_leaves_the_environment_of_the_user_alone() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    ran = subprocess.run(["make", "-n", "-B", "check", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".venv-dev/bin/" in ran.stdout and ".venv-docs/bin/" in ran.stdout
    assert ".venv/" not in ran.stdout and "venv .venv\n" not in ran.stdout


def test_the_map_of_the_code_has_every_room_and_names_files_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `(\w+/(?:\w+/)?)` \| (.*) \|$", text))
    rooms = [
        path for top in ("formats", "transcode") for path in (ROOT / top).iterdir() if (path / "__init__.py").exists()
    ]
    assert {f"{path.relative_to(ROOT)}/" for path in rooms} <= rows.keys()
    for room, row in rows.items():
        for name in re.findall(r"`([\w/]+\.py)`", row):
            assert (ROOT / room / name).exists(), (room, name)
    shared = {path.name for path in (ROOT / "formats").glob("*.py")} - {"__init__.py"}
    assert shared <= {*re.findall(r"`(\w+\.py)`", rows["formats/"])}


@pytest.mark.parametrize("name", ["preparing", "choosing-settings", "times-and-cuts", "changing", "checks"])
def test_pages_about_preparing_are_short(name: str) -> None:
    text = re.sub(r"(?s)```.*?```", "", (ROOT / "docs" / f"{name}.md").read_text())
    assert len(text.split()) <= 900


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
