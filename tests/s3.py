"""A real S3 server on this machine, moto's, that can be told to fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import free_port, needs_modules, wait_until
from tests.helpers import environment

# Every n-th request fails, n as the file says: refused with 503, or done and then answered with 500, or its answer cut short.
SERVER = """
import itertools, pathlib, sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
port, control = int(sys.argv[1]), pathlib.Path(sys.argv[2])
moto, numbers, kinds = DomainDispatcherApplication(create_backend_app), itertools.count(1), itertools.cycle("abc")
ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>injected</Message></Error>"

def answer(environ, start):
    every = int(control.read_text())
    kind = next(kinds) if every and next(numbers) % every == 0 else ""
    if kind:
        with control.with_name("failed").open("a") as file:
            file.write(kind)
    if kind == "a":
        start("503 Slow Down", [("Content-Type", "application/xml")])
        return [ERROR % b"SlowDown"]
    if kind == "b":
        list(moto(environ, lambda *_: None))
        start("500 Internal Server Error", [("Content-Type", "application/xml")])
        return [ERROR % b"InternalError"]
    body = b"".join(moto(environ, start))
    return [body[: len(body) // 2] if kind == "c" and environ["REQUEST_METHOD"] == "GET" else body]

make_server("127.0.0.1", port, answer, threaded=True).serve_forever()
"""


@dataclass(frozen=True)
class Bucket:
    """environment: what finds it."""

    name: str
    client: Any
    environment: dict[str, str]
    control: Path

    def fail_every(self, count: int) -> None:
        """0: never."""
        self.control.write_text(str(count))

    @property
    def failures(self) -> str:
        told = self.control.with_name("failed")
        return told.read_text() if told.exists() else ""

    def put(self, path: Path, key: str) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=path.read_bytes())

    def objects(self, prefix: str) -> dict[str, bytes]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return {
            key.removeprefix(prefix): self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys
        }


@contextmanager
def bucket(folder: Path) -> Iterator[Bucket]:
    needs_modules(["moto", "s3fs", "flask"], "pip install '.[s3]' 'moto[server]'")
    import boto3

    control = folder / "control"
    control.write_text("0")
    port = free_port()
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port), str(control)], stderr=subprocess.DEVNULL)
    place = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
    try:
        client = boto3.client(
            "s3", endpoint_url=place, aws_access_key_id="any", aws_secret_access_key="any", region_name="us-east-1"
        )

        def answers() -> bool:
            try:
                client.create_bucket(Bucket="videos")
            except OSError:
                return False
            except Exception as error:
                if "connect" in str(error).lower():
                    return False
                raise
            return True

        wait_until(answers, "the S3 server")
        yield Bucket("videos", client, environment(**keys, AWS_ENDPOINT_URL=place), control)
    finally:
        server.kill()
        server.wait()
