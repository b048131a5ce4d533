"""Whatever Arrow value stands in whatever column of a table comes back from every store and in every item."""

from __future__ import annotations

import datetime
import string
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from tests.helpers import make_clips
from tests.transcode.destination.arrays import KINDS
from vidprep.formats import VideoDataset, open_store
from vidprep.formats.manifest.labels import values_of
from vidprep.transcode import burst, transcode

CLIPS = 3
DAY, MOMENT = datetime.date(1970, 1, 1), datetime.datetime(1970, 1, 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), INT64),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes()),
    (
        pa.timestamp("ms", "UTC"),
        st.datetimes(datetime.datetime(1900, 1, 1), timezones=st.just(datetime.UTC)).map(
            lambda when: when.replace(microsecond=0)
        ),
    ),
    (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(-99999), datetime.timedelta(99999))),
    (pa.decimal128(12, 3), st.decimals(Decimal("-99999999"), Decimal("99999999"), places=3)),
]


def nested(
    inner: tuple[pa.DataType, st.SearchStrategy[Any]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    kind, values = inner
    maybe = st.none() | values
    return st.sampled_from(
        [
            (pa.list_(kind), st.lists(maybe, max_size=3)),
            (pa.large_list(kind), st.lists(maybe, max_size=3)),
            (pa.list_(kind, 2), st.lists(maybe, min_size=2, max_size=2)),
            (
                pa.struct([("a", kind), ("frames", pa.int32())]),
                st.fixed_dictionaries({"a": maybe, "frames": st.integers(0, 9)}),
            ),
            (
                pa.map_(pa.string(), kind),
                st.dictionaries(st.text(max_size=3), maybe, max_size=2).map(lambda each: [*each.items()]),
            ),
        ]
    )


KIND = (
    st.sampled_from(PLAIN)
    | st.sampled_from(PLAIN).flatmap(nested)
    | st.sampled_from(PLAIN).flatmap(nested).flatmap(nested)
)
NAMES = st.sampled_from(
    ["frames", "width", "status", "labels", "label", "split", "sha256", "class_id", "shard", "offsets"]
)
COLUMNS = st.dictionaries(
    NAMES | st.text(string.printable, min_size=1, max_size=6).filter(lambda name: name.strip() == name),
    KIND.flatmap(
        lambda kind: st.lists(st.none() | kind[1], min_size=CLIPS, max_size=CLIPS).map(
            lambda found: pa.array(found, kind[0])
        )
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("any label")
    make_clips(root / "src", CLIPS, 3)
    return root


def made(root: Path, kind: str, table: Path) -> None:
    if kind in ("h264", "shards"):
        transcode(table, root / kind, gop=4, preset="ultrafast", format="files" if kind == "h264" else kind)
    else:
        burst(table, root / kind, format=kind)


def same(one: object, other: object) -> bool:
    return repr(one) == repr(other)  # NaN is NaN


@pytest.mark.long
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(columns=COLUMNS)
@example(columns={"label": pa.array([None] * CLIPS), "n": pa.array([[], None, [None]], pa.list_(pa.list_(pa.int8())))})
@example(
    columns={"t": pa.array([1, None, -1], pa.timestamp("ns")), "d": pa.array(["x", None, "x"]).dictionary_encode()}
)
@pytest.mark.filterwarnings("ignore:.*have no label")
def test_any_arrow_value_in_any_column_comes_back_from_every_store(columns: dict[str, pa.Array], stores: Path) -> None:
    columns = {name: array for name, array in columns.items() if name not in ("path", "id", "start", "end")}
    paths = pa.array([str(path) for path in sorted((stores / "src").glob("*.mp4"))])
    given_table = pa.table({"path": paths} | columns)
    pq.write_table(given_table, stores / "src" / "t.parquet")
    whole = pq.read_table(stores / "src" / "t.parquet")
    due = {name: values_of(whole[name]) for name in columns}
    for kind in KINDS:
        made(stores, kind, stores / "src" / "t.parquet")
        store = open_store(stores / kind)
        kept = store.label_columns()
        assert kept.columns.keys() >= due.keys(), "beside those of the tables before"
        for number, id_ in enumerate(store.ids):
            found = store.labels(id_)
            assert all(same(found[name], values[number]) for name, values in due.items()), kind
        dataset = VideoDataset(store, 3)
        for index in range(len(dataset)):
            item = dataset[index]
            number = store.ids.index(item["id"])
            assert all(same(item["labels"][name], values[number]) for name, values in due.items()), kind
