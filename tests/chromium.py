"""A real browser that tests open pages in."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Browser:
    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path) -> float:
        """Seconds until all is drawn; nothing may be logged, or asked of anyone."""
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        began = time.monotonic()
        self.driver.get(f"file://{page.resolve()}")
        while self.run("return document.documentElement.dataset.drawn") != "yes":
            assert time.monotonic() - began < 30, self.driver.get_log("browser")
            time.sleep(0.02)
        seconds = time.monotonic() - began
        assert self.driver.get_log("browser") == []
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        assert asked and all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
        return seconds

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def column(self, number: int) -> list[str]:
        return self.run(
            f"return [...document.querySelectorAll('table.sortable tbody tr')].map(r => r.cells[{number}].textContent)"
        )


@contextmanager
def chromium() -> Iterator[Browser]:
    """Without a network: a name that is looked up is not found. Skips where it is missing, unless VIDPREP_REQUIRE demands it."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        say = pytest.fail if os.environ.get("VIDPREP_REQUIRE") else pytest.skip
        say("Chromium is missing: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("headless=new", "no-sandbox", "window-size=1300,1000", "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{argument}")
    options.add_argument("--disable-dev-shm-usage")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(running)
    finally:
        running.quit()
