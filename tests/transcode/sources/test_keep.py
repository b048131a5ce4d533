"""`--keep`: which rows of a table a condition takes, beside pandas' own query, and what is no condition."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import make_clips, manifest, transcode
from vidprep.formats.errors import SettingsError
from vidprep.transcode.settings.keep import check_condition
from vidprep.transcode.sources.table_rows import rows_left_out
from vidprep.transcode.sources.tables import SourceTable

VALUES: dict[str, list[Any]] = {
    "motion": [0.1, 0.25, None, 3.0, -1.0, 0.2],
    "label": ["run", "jump", "run", None, "it's", "run"],
    "frames": [1, 2, 3, 4, 5, None],
    "good": [True, False, True, True, None, False],
}
TABLE = SourceTable(VALUES, 6)
TAKEN = {
    "motion > 0.2": [1, 3],
    "motion >= 0.2 and label == 'run'": [5],
    "0.1 <= motion < 1": [0, 1, 5],
    "motion > -2": [0, 1, 3, 4, 5],
    "label in ('run', 'jump')": [0, 1, 2, 5],
    "label not in ['run']": [1, 4],
    "not label == 'run'": [1, 4],
    "label != 'run'": [1, 4],
    'label == "it\'s"': [4],
    "label == None": [3],
    "label is None or motion is not None and frames == 1": [0, 3],
    "label != None and motion != None": [0, 1, 4, 5],
    "good": [0, 2, 3],
    "not good": [1, 5],
    "good == True or frames == 5": [0, 2, 3, 4],
    "frames > motion": [0, 1, 3, 4],
    "frames in (1, 2, 2.0)": [0, 1],
    "(frames < 3 or frames > 4) and not (motion < 0)": [0, 1],
    "label > 'k'": [0, 2, 5],
}


@pytest.mark.parametrize("text", TAKEN)
def test_rows_for_which_it_holds(text: str) -> None:
    left_out = rows_left_out(check_condition(text), TABLE, "x.csv")
    assert [number for number in range(6) if number not in left_out] == TAKEN[text]


def test_random_conditions_are_those_of_python() -> None:
    rng = random.Random(3)
    table = {name: [rng.randrange(6) for _ in range(50)] for name in "abc"}
    for _ in range(300):
        text = _condition(rng, 3)
        left_out = rows_left_out(check_condition(text), SourceTable(table, 50), "x.csv")
        rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
        assert left_out == {n for n, row in enumerate(rows) if not eval(text, {}, row)}, text


def _condition(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.3:
            return f"{rng.choice('abc')} {rng.choice(('in', 'not in'))} ({rng.randrange(6)}, {rng.randrange(6)})"
        sides = [rng.choice([*"abc", str(rng.randrange(6)), "-1", "2.5"]) for _ in range(rng.choice((2, 2, 3)))]
        text = sides[0]
        for side in sides[1:]:
            text += f" {rng.choice(('<', '<=', '>', '>=', '==', '!='))} {side}"
        return text
    if rng.random() < 0.3:
        return f"not ({_condition(rng, depth - 1)})"
    return f"({_condition(rng, depth - 1)}) {rng.choice(('and', 'or'))} ({_condition(rng, depth - 1)})"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "motion >",
        "motion > 0.2 &",
        "__import__('os').system('true')",
        "motion.real > 1",
        "motion + 1 > 2",
        "motion if good else frames",
        "[x for x in (1,)]",
        "label in 'run'",
        "label in frames",
        "label in ()",
        "lambda: 1",
        "motion > 1j",
        "label == b'x'",
        "(good := 1)",
        "label is 'run'",
        "label == -'run'",
        f"frames == {10**40}",
        "frames == -None",
        "label == 'a' == label is good",
        "1",
        "'text'",
        "f'{label}' == 'run'",
        "(" * 500 + "good" + ")" * 500,
        "not " * 5000 + "good",
        "good and " * 2000 + "good",
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(SettingsError, match="keep="):
        check_condition(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [("speed > 1", "no column speed"), ("label > 1", "keep"), ("motion == 'fast'", "keep"), ("label", "keep")],
)
def test_columns_that_do_not_fit(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        rows_left_out(check_condition(text), TABLE, "x.csv")


def test_transcode_takes_these_rows_and_counts_the_others(tmp_path: Path) -> None:
    make_clips(tmp_path / "raw", 4)
    table = tmp_path / "t.csv"
    table.write_text("path,motion\n" + "".join(f"raw/c0{n}.mp4,{n / 10}\n" for n in range(4)))
    ran = transcode(table, tmp_path / "out", "--keep", "motion > 0.15")
    assert ran.code == 0
    assert sorted(id_[-3:] for id_ in manifest(tmp_path / "out")) == ["c02", "c03"]
    assert "2" in ran.err and "--keep" in ran.err
    # A later run with less removes nothing, and with more adds the others.
    assert transcode(table, tmp_path / "out", "--keep", "motion > 0.25").code == 0
    assert sorted(id_[-3:] for id_ in manifest(tmp_path / "out")) == ["c02", "c03"]
    assert transcode(table, tmp_path / "out").code == 0
    assert sorted(id_[-3:] for id_ in manifest(tmp_path / "out")) == ["c00", "c01", "c02", "c03"]


def test_a_folder_has_no_columns(tmp_path: Path) -> None:
    ran = transcode(make_clips(tmp_path / "raw", 1), tmp_path / "out", "--keep", "motion > 1")
    assert ran.code == 2
    assert "--keep takes columns of a table" in ran.err


def test_a_condition_for_no_row_is_said(tmp_path: Path) -> None:
    make_clips(tmp_path / "raw", 1)
    (tmp_path / "t.csv").write_text("path,motion\nraw/c00.mp4,1\n")
    ran = transcode(tmp_path / "t.csv", tmp_path / "out", "--keep", "motion > 9")
    assert ran.code == 2
    assert "--keep" in ran.err
