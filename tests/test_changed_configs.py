"""Only settings that differ from their default are recorded."""

import json

import pytest
import torch

from torchproof.torch_private import configs


def changed() -> dict:
    found = configs.changed()
    assert json.loads(json.dumps(found)) == found
    return found


def test_a_changed_setting_is_recorded_while_it_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = changed()
    with (
        torch._dynamo.config.patch(recompile_limit=3),
        torch._inductor.config.patch({"max_autotune": True, "cpp.threads": 3}),
    ):
        after = changed()
    dynamo, inductor = after["torch._dynamo.config"], after["torch._inductor.config"]
    assert dynamo["recompile_limit"] == 3
    assert "cache_size_limit" not in dynamo  # another name of the same
    assert inductor["max_autotune"] is True and inductor["cpp.threads"] == 3
    assert changed() == before


def test_what_is_no_json_is_recorded_as_its_repr() -> None:
    with torch._inductor.config.patch(post_grad_custom_pre_pass=print):
        found = changed()["torch._inductor.config"]
    assert found["post_grad_custom_pre_pass"] == repr(print)
