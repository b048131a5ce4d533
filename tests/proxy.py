"""A proxy on this machine that adds latency, limits the rate, and breaks answers.

    python -m tests.proxy PORT HOST:PORT CONTROL LOG

CONTROL is a file of JSON that is read at each request: `delay` (seconds before the first byte), `rate` (bytes per second in
all), and `every` with `kinds`: of so many GETs one is broken, as the letters say in turn:

`hides` is whether an object that does not exist is answered with 403, as S3 does for who may not list.

    r   refused with 503            c   cut off in the middle
    s   answered 5 seconds late     d   closed without an answer

Each request that comes is a line of LOG: method, path, range, and how it was answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

REFUSED = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 8\r\nContent-Type: text/plain\r\n\r\nSlowDown"
LATE_SECONDS = 5.0


class Proxy:
    def __init__(self, upstream: str, control: Path, log: Path) -> None:
        self.host, _, port = upstream.partition(":")
        self.port, self.control, self.log = int(port), control, log.open("a", buffering=1)
        self.count = self.broken = 0
        self.free_at = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.close()
            return
        try:
            while await self.exchange(reader, writer, there, back):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            back.close()

    async def exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> bool:
        """One request and its answer; False ends the connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        method, path, _ = first.split(" ", 2)
        told = json.loads(self.control.read_text())
        kind = self.kind(told) if method == "GET" else ""
        self.log.write(f"{method} {path} {fields.get('range', '-')} {kind or 'ok'}\n")
        if kind == "d":
            return False
        await asyncio.sleep(told["delay"] + (LATE_SECONDS if kind == "s" else 0))
        if kind == "r":
            writer.write(REFUSED)
            await writer.drain()
            return True
        back.write(head + body)
        answer = await there.readuntil(b"\r\n\r\n")
        if told["hides"] and answer.split(b" ", 2)[1] == b"404":
            answer = answer.replace(b"404 Not Found", b"403 Forbidden", 1)
        text = answer.decode("latin-1").lower()
        size = 0
        if method != "HEAD" and " 304 " not in text.split("\r\n")[0]:
            size = next(
                (int(line.partition(":")[2]) for line in text.split("\r\n") if line.startswith("content-length")), 0
            )
        writer.write(answer)
        content = await there.readexactly(size)
        if told["rate"]:
            now = time.monotonic()
            self.free_at = max(now, self.free_at) + len(content) / told["rate"]
            await asyncio.sleep(self.free_at - now)
        writer.write(content[: len(content) // 2] if kind == "c" else content)
        await writer.drain()
        return kind != "c"

    def kind(self, told: dict[str, object]) -> str:
        self.count += 1
        if not told["every"] or self.count % int(str(told["every"])):
            return ""
        self.broken += 1
        kinds = str(told["kinds"])
        return kinds[self.broken % len(kinds)]


async def main(port: int, upstream: str, control: str, log: str) -> None:
    proxy = Proxy(upstream, Path(control), Path(log))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
