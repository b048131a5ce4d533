"""A real S3 server on this machine, moto's, that can be told to fail, to be slow, and to know no conditional writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import free_port, needs_modules, wait_until
from tests.helpers import environment

# Every n-th request fails: refused with 503, or done and then answered with 500, or its answer cut short. Each waits up to
# `delay` seconds before it is done, and again before it is answered. One at a time is done, whole, as S3 does it. Conditions
# on a PUT are kept, ignored, or refused as not implemented.
SERVER = """
import io, itertools, json, pathlib, random, sys, threading, time
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
port, control = int(sys.argv[1]), pathlib.Path(sys.argv[2])
moto, numbers, kinds = DomainDispatcherApplication(create_backend_app), itertools.count(1), itertools.cycle("abc")
ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>injected</Message></Error>"

one = threading.Lock()

def done(environ, start):
    # All of a request is read first: whoever is stopped in the middle of sending one must not stop the others.
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    with one:
        return b"".join(moto(environ, start))

def answer(environ, start):
    told = json.loads(control.read_text())
    every, delay, conditions = told["every"], told["delay"], told["conditions"]
    if environ["REQUEST_METHOD"] == told["refused"]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start("503 Slow Down", [("Content-Type", "application/xml")])
        return [ERROR % b"SlowDown"]
    names = [name for name in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH") if name in environ]
    if environ["REQUEST_METHOD"] == "PUT" and names and conditions != "kept":
        if conditions == "refused":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("501 Not Implemented", [("Content-Type", "application/xml")])
            return [ERROR % b"NotImplemented"]
        for name in names:
            del environ[name]
    time.sleep(random.uniform(0, delay))
    body = answered(environ, start, every)
    time.sleep(random.uniform(0, delay))
    return body

def answered(environ, start, every):
    kind = next(kinds) if every and next(numbers) % every == 0 else ""
    if kind:
        with control.with_name("failed").open("a") as file:
            file.write(kind)
    if kind == "a":
        start("503 Slow Down", [("Content-Type", "application/xml")])
        return [ERROR % b"SlowDown"]
    if kind == "b":
        done(environ, lambda *_: None)
        start("500 Internal Server Error", [("Content-Type", "application/xml")])
        return [ERROR % b"InternalError"]
    body = done(environ, start)
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

    def behave(self, *, every: int = 0, delay: float = 0.0, conditions: str = "kept", refused: str = "") -> None:
        """every: so many requests, one fails; 0: none. conditions: kept, ignored or refused. refused: all requests of this method."""
        partial = self.control.with_suffix(".partial")
        partial.write_text(json.dumps({"every": every, "delay": delay, "conditions": conditions, "refused": refused}))
        partial.replace(self.control)

    def fail_every(self, count: int) -> None:
        """0: never."""
        self.behave(every=count)

    @property
    def failures(self) -> str:
        told = self.control.with_name("failed")
        return told.read_text() if told.exists() else ""

    def put_folder(self, folder: Path, prefix: str) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(path, f"{prefix}/{path.relative_to(folder)}")

    def put(self, path: Path, key: str) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=path.read_bytes())

    def objects(self, prefix: str) -> dict[str, bytes]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return {
            key.removeprefix(prefix): self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys
        }


POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


@contextmanager
def bucket(folder: Path, *, checks_keys: bool = False) -> Iterator[Bucket]:
    """checks_keys: whether requests must be signed with the keys in its environment."""
    needs_modules(["moto", "s3fs", "flask"], "pip install '.[s3]' 'moto[server]'")
    import boto3

    control = folder / "control"
    port = free_port()
    free = {"INITIAL_NO_AUTH_ACTION_COUNT": "5" if checks_keys else "1000000000"}  # that many are not checked
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port), str(control)], stderr=subprocess.DEVNULL, env=os.environ | free
    )
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

        running = Bucket("videos", client, environment(**keys, AWS_ENDPOINT_URL=place), control)
        running.behave()
        wait_until(answers, "the S3 server")
        if checks_keys:
            running = _with_keys(running, place)
        yield running
    finally:
        server.kill()
        server.wait()


def _with_keys(running: Bucket, place: str) -> Bucket:
    """The same bucket, of a user whose keys are checked from now on."""
    import boto3

    plain = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    iam = boto3.client("iam", endpoint_url=place, **plain)
    iam.create_user(UserName="reader")
    made = iam.create_access_key(UserName="reader")["AccessKey"]
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(POLICY))
    keys = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
    client = boto3.client("s3", endpoint_url=place, aws_access_key_id=made["AccessKeyId"], region_name="us-east-1",
                          aws_secret_access_key=made["SecretAccessKey"])  # fmt: skip
    return Bucket(running.name, client, running.environment | keys, running.control)
