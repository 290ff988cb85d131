"""Only settings that differ from their default are told."""

import json

import pytest
import torch

from torchproof.torch_private import configs


def told() -> dict:
    found = configs.changed()
    assert json.loads(json.dumps(found)) == found
    return found


def test_a_changed_setting_is_told_and_then_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = told()
    with (
        torch._dynamo.config.patch(recompile_limit=3),
        torch._inductor.config.patch({"max_autotune": True, "cpp.threads": 3}),
    ):
        after = told()
    dynamo, inductor = after["torch._dynamo.config"], after["torch._inductor.config"]
    assert dynamo["recompile_limit"] == 3
    assert "cache_size_limit" not in dynamo  # another name of the same
    assert inductor["max_autotune"] is True and inductor["cpp.threads"] == 3
    assert told() == before


def test_what_is_no_json_is_told_as_python_writes_it() -> None:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=print):
        found = told()["torch._inductor.config"]
    assert found["post_grad_custom_pre_pass"] == repr(print)
