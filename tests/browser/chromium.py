"""Drives the machine's own Chromium through chromedriver: JSON over HTTP, no more.

`scripts/chromium` installs both. `missing()` says why there is no browser here.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # Chromium refuses to run as root otherwise
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
)
PROGRAMS = ("chromium", "chromedriver")


def missing() -> str:
    """Empty where the browser is there."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    what = " and ".join(absent)
    return f"no {what} here: left out (scripts/chromium installs it)" if what else ""


class Browser:
    """One window. `cdp` reaches what WebDriver has no words for."""

    def __init__(self, address: str) -> None:
        self._address = address
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {
                "binary": shutil.which("chromium"),
                "args": list(OPTIONS),
            },
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self._address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def open(self, path: Path, anchor: str = "") -> None:
        self._post(f"{self._session}/url", {"url": path.absolute().as_uri() + anchor})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript expression; `arguments` are known by that name."""
        body = {"script": f"return ({script})", "args": list(arguments)}
        return self._post(f"{self._session}/execute/sync", body)

    def cdp(self, command: str, **parameters: Any) -> Any:
        body = {"cmd": command, "params": parameters}
        return self._post(f"{self._session}/goog/cdp/execute", body)

    def press(self, *keys: str) -> None:
        """Keys as a person types them, to whatever has the focus."""
        actions = [
            {"type": kind, "value": key}
            for word in keys
            for key in ([word] if len(word) == 1 else list(word))
            for kind in ("keyDown", "keyUp")
        ]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._post(f"{self._session}/actions", {"actions": [source]})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since the last time: `browser` or `performance`."""
        found = self._post(f"{self._session}/se/log", {"type": kind})
        return list(found)

    def size(self, width: int, height: int = 800) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer(self, scheme: str) -> None:
        """What the reader's system asks for: light or dark."""
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", features=wanted)

    def close(self) -> None:
        request = urllib.request.Request(self._address + self._session, method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, ended with everything it started."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    try:
        started = next(
            found
            for line in driver.stdout
            if (found := re.search(r"started successfully on port (\d+)", line))
        )
        window = Browser(f"http://127.0.0.1:{started[1]}")
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(30)
        driver.stdout.close()
