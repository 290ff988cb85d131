"""Answers of docs/reference/coverage.md that need CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_coverage_guide as guide

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", guide.named("gpu"))
def test_answer_says_what_its_rows_say(name: str, tmp_path: Path) -> None:
    guide.assert_says_what_its_rows_say(name, tmp_path)
