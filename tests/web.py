"""A folder behind a URL: a web server (nginx) and, before it, a proxy that can be slow and break answers (tests/proxy.py)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import free_port, needs_modules, wait_until

REPOSITORY = Path(__file__).parents[1]

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@dataclass(frozen=True)
class Web:
    """url: of the folder, through the proxy."""

    url: str
    control: Path
    log: Path

    def behave(
        self, *, delay: float = 0.0, rate: float = 0.0, every: int = 0, kinds: str = "rcd", hides: bool = False
    ) -> None:
        partial = self.control.with_suffix(".partial")
        told = {"delay": delay, "rate": rate, "every": every, "kinds": kinds, "hides": hides}
        partial.write_text(json.dumps(told))
        partial.replace(self.control)

    def requests(self) -> list[list[str]]:
        """Method, path, range and answer of each request so far."""
        return [line.split(" ") for line in self.log.read_text().splitlines()]


@contextmanager
def proxied(upstream: str, work: Path) -> Iterator[Web]:
    port = free_port()
    web = Web(f"http://127.0.0.1:{port}", work / "control", work / "requests.log")
    web.behave()
    web.log.touch()
    command = [sys.executable, "-m", "tests.proxy", str(port), upstream, str(web.control), str(web.log)]
    process = subprocess.Popen(command, cwd=REPOSITORY)
    try:
        wait_until(lambda: _answers(port), "the proxy")
        yield web
    finally:
        process.kill()
        process.wait()


@contextmanager
def web_of(root: Path, work: Path) -> Iterator[Web]:
    """Skips without nginx or obstore, unless VIDPREP_REQUIRE demands them."""
    needs_modules(["obstore"], "pip install '.[remote]'")
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    if not program:
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say("nginx is missing: apt-get install nginx-light")
    port = free_port()
    work.mkdir(parents=True, exist_ok=True)
    (work / "nginx.conf").write_text(NGINX.format(folder=work, port=port, root=root))
    server = subprocess.Popen([str(program), "-e", str(work / "error.log"), "-c", str(work / "nginx.conf")])
    try:
        wait_until(lambda: _answers(port), "nginx")
        with proxied(f"127.0.0.1:{port}", work) as web:
            yield web
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
