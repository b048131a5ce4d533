"""Stores in a bucket of a real S3 server, which checks signatures: credentials as AWS's own tools find them, and commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import transcode
from tests.s3 import Bucket, bucket
from vidprep.formats import open_store
from vidprep.formats.errors import MissingError, StoreError
from vidprep.formats.storage._credentials import add_credentials

VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, store_of: Callable[[str], Path]) -> Iterator[Bucket]:
    with bucket(tmp_path_factory.mktemp("checked"), checks_keys=True) as running:
        running.put_folder(store_of("shards"), "shards")
        yield running


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory, store_of: Callable[[str], Path]) -> Iterator[Bucket]:
    with bucket(tmp_path_factory.mktemp("public")) as running:
        for kind in ("shards", "h264", "burst"):
            running.put_folder(store_of(kind), kind)
            for key in running.objects(f"{kind}/"):
                running.client.put_object_acl(Bucket=running.name, Key=f"{kind}/{key}", ACL="public-read")
        yield running


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return monkeypatch


def check_same(url: str, folder: Path, **options: object) -> None:
    here, there = open_store(folder), open_store(url, **options)
    for id_ in here.ids:
        assert np.array_equal(here[id_].frames(range(7)), there[id_].frames(range(7)))


@pytest.mark.long
def test_credentials_are_found_as_other_tools_find_them(
    checked: Bucket, clean: pytest.MonkeyPatch, tmp_path: Path, store_of: Callable[[str], Path]
) -> None:
    url, folder = f"s3://{checked.name}/shards", store_of("shards")
    key, secret, endpoint, region = (checked.environment[name] for name in VARIABLES)
    options = {"access_key_id": key, "secret_access_key": secret, "endpoint": endpoint, "region": region}
    check_same(url, folder, storage_options=options)
    with pytest.raises(StoreError, match=f"{url}/manifest.parquet: its properties cannot be read: .*403"):
        open_store(url, storage_options=options | {"secret_access_key": "wrong"}, cache_dir=tmp_path / "other")

    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[training]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    )
    (tmp_path / ".aws" / "config").write_text(f"[profile training]\nregion = {region}\nendpoint_url = {endpoint}\n")
    clean.setenv("AWS_PROFILE", "training")
    check_same(url, folder)
    clean.delenv("AWS_PROFILE")
    for name in VARIABLES:
        clean.setenv(name, checked.environment[name])
    check_same(url, folder)


@pytest.mark.long
def test_credentials_are_fetched_as_a_profile_says(
    checked: Bucket, clean: pytest.MonkeyPatch, tmp_path: Path, store_of: Callable[[str], Path]
) -> None:
    key, secret, endpoint, region = (checked.environment[name] for name in VARIABLES)
    told = json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret})
    (tmp_path / "fetch").write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho '{told}'\n")
    (tmp_path / "fetch").chmod(0o755)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        f"[profile training]\nregion = {region}\nendpoint_url = {endpoint}\ncredential_process = {tmp_path}/fetch\n"
    )
    clean.setenv("AWS_PROFILE", "training")
    check_same(f"s3://{checked.name}/shards", store_of("shards"))
    assert (tmp_path / "asked").read_text().startswith("asked")
    (tmp_path / "fetch").write_text("#!/bin/sh\necho signed out >&2\nexit 3\n")
    with pytest.raises(
        StoreError, match=r"profile training of ~/\.aws cannot be fetched by credential_process: .*signed"
    ):
        open_store(f"s3://{checked.name}/others", cache_dir=tmp_path / "other")
    clean.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingError, match=r"profile training of ~/\.aws has credential_process, .* pip install boto3"):
        add_credentials(f"s3://{checked.name}/shards", {})


@pytest.mark.long
def test_a_public_bucket_needs_no_credentials(
    public: Bucket, clean: pytest.MonkeyPatch, store_of: Callable[[str], Path]
) -> None:
    clean.setenv("AWS_ENDPOINT_URL", public.environment["AWS_ENDPOINT_URL"])
    check_same(f"s3://{public.name}/burst", store_of("burst"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["shards", "h264", "burst"])
def test_commands_take_a_url_and_read_by_ranges(
    kind: str, public: Bucket, clean: pytest.MonkeyPatch, tmp_path: Path, store_of: Callable[[str], Path]
) -> None:
    url, folder, env = f"s3://{public.name}/{kind}", store_of(kind), public.environment
    env = {**env, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    here, there = transcode(folder, verb="show", env=env), transcode(url, verb="show", env=env)
    assert there.code == 0 and there.out == here.out
    checked = transcode(url, verb="validate", env=env)
    assert checked.code == 0 and not checked.out, (checked.out, checked.err)
    shown = transcode(url, "--out", tmp_path / "report", verb="report", env=env)
    assert shown.code == 0, shown.err
    to = "shards" if kind != "burst" else "tensor"
    for source, out in ((folder, tmp_path / "one"), (url, tmp_path / "other")):
        packed = transcode(source, out, "--to", to, verb="pack", env=env)
        assert packed.code == 0, packed.err
    one, other = open_store(tmp_path / "one"), open_store(tmp_path / "other")
    assert list(one.ids) == list(other.ids)
    assert all(np.array_equal(one[id_].frames(), other[id_].frames()) for id_ in one.ids)
    timed = transcode(url, "--seconds", 0.1, "--sample", 2, verb="bench", env=env)
    assert timed.code == 0 and "vidprep" in timed.out, (timed.out, timed.err)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("vidprep-scratch")]

    shard = next(path for path in sorted(folder.rglob("*.*")) if path.suffix in (".mp4", ".tar", ".bin"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    key = f"{kind}/{shard.relative_to(folder)}"
    public.client.put_object(Bucket=public.name, Key=key, Body=bytes(data))
    broken = transcode(url, verb="validate", env=env)
    public.put(shard, key)
    assert broken.code == 1 and f"{url}/{shard.relative_to(folder)}" in broken.out, (broken.out, broken.err)
