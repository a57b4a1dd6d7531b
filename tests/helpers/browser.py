"""A real browser without a window: what a page logs, what it asks of the network, how it looks."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers run tests as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def skip_without_browser() -> None:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no browser: install Debian's chromium and chromium-driver")


class Browser:
    """One window of Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path | str) -> None:
        """A file, or an address."""
        self.driver.get(page.resolve().as_uri() if isinstance(page, Path) else page)

    def errors(self) -> list[str]:
        """What the console holds of warnings and errors, since last asked."""
        levels = ("WARNING", "SEVERE")
        found = self.driver.get_log("browser")
        return [entry["message"] for entry in found if entry["level"] in levels]

    def requests(self) -> list[str]:
        """Addresses that pages have asked for, since last asked; the browser's own are none."""
        logged = (json.loads(row["message"]) for row in self.driver.get_log("performance"))
        sent = [entry["message"] for entry in logged]
        urls = [
            entry["params"]["request"]["url"]
            for entry in sent
            if entry["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "blob:", "chrome:"))]

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a script returns."""
        return self.driver.execute_script(script, *arguments)

    def resize(self, width: int, height: int) -> None:
        """The size of the page itself, as on a phone (a real window has a least width)."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def prefer(self, scheme: str) -> None:
        """'dark' or 'light', as the system would ask for."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A window that is closed in the end; the test is skipped where there is no browser."""
    skip_without_browser()
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(prefix="sottovoce-browser-") as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_window_size(1200, 900)
            yield Browser(driver)
        finally:
            driver.quit()
