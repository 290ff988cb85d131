"""One browser for all tests of pages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import chromium
import pytest
from chromium import Browser


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    why = chromium.missing()
    if why and "CHROMIUM_REQUIRED" in os.environ:
        pytest.fail(why)
    if why:
        pytest.skip(why)
    with chromium.browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def plain(window: Browser) -> None:
    """Each test begins with a wide, light window in which scripts run."""
    window.size(1200)
    window.prefer("light")
    window.cdp("Emulation.setScriptExecutionDisabled", value=False)
    window.cdp("Emulation.setEmulatedMedia", media="")
