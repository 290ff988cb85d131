"""The page about CUDA graphs, where there are some."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graph.md"


def test_the_programs_of_the_page_are_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names: dict[str, object] = {}
    exec(compile("".join(blocks), str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "3 of 3 calls" in printed and "1 recordings" in printed
    assert "host_sync" in printed
    padded = names["padded"]
    assert padded.falls_back == [], padded.status()  # type: ignore[attr-defined]
    assert padded.status().replays == 1  # type: ignore[attr-defined]
    assert "torch.Size([3, 11, 4])" in printed
