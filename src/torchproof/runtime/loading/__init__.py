"""A deploy pack put to use: `model = torchproof.load("pack", model)`.

The manifest is read first. What does not fit this place or this model, or is not to be
trusted, is refused with one line in the log, and the model is compiled as usual: a
service starts cold then, and right.
"""

from __future__ import annotations

import os
from typing import Any

from torchproof.records import UserError
from torchproof.runtime.pack_format.contents import open_pack
from torchproof.runtime.pack_format.keys import read_key, usable_key
from torchproof.runtime.pack_format.refusal import Refused
from torchproof.runtime.pack_format.trust import assert_trusted

__all__ = ["PackRefused", "load"]


class PackRefused(Refused):
    """A pack that is not used, and why: raised where there is no going without it."""


Key = str | os.PathLike[str] | bytes | None


def load(
    pack: str | os.PathLike[str],
    model: Any = None,
    *,
    key: Key = None,
    strict: bool = False,
    warm: bool = True,
) -> Any:
    """The model, compiled from what the pack holds; `torchproof.status` tells how.

    `key` is the file of the key that signed it, or the key itself. A pack that is
    refused leaves the model to `torchproof.compile`, unless `strict` is set: then
    `torchproof.PackRefused` is raised, as it is without a model. With `warm`, every
    shape of the pack is run once before this returns.
    """
    if os.environ.get("TORCHPROOF_DISABLE") == "1" and model is not None:
        return model
    if not isinstance(pack, str | os.PathLike):
        raise UserError(f"load: give the path of a pack, not a {type(pack).__name__}")
    for name, value in {"strict": strict, "warm": warm}.items():
        if not isinstance(value, bool):
            raise UserError(f"{name}={value!r}: give True or False")
    if model is not None and not callable(model):
        raise UserError(f"load: {type(model).__name__} is no model")
    secret = _secret(key)
    if not os.path.lexists(pack):
        raise UserError(
            f"no pack {os.fspath(pack)}: torchproof pack TARGET --for deploy makes one"
        )
    try:
        with open_pack(pack) as contents:
            assert_trusted(contents, secret)
            from torchproof.runtime.loading import open_model

            return open_model.open_model(contents, model, warm=warm)
    except (Refused, OSError) as error:
        if strict or model is None:
            raise PackRefused(str(error)) from None
        from torchproof.runtime.loading import open_model

        return open_model.compile_without_pack(model, os.fspath(pack), str(error))


def _secret(key: Key) -> bytes | None:
    if isinstance(key, bytes):
        return usable_key(key)
    if key is not None and not isinstance(key, str | os.PathLike):
        raise UserError(f"key: give a file or bytes, not a {type(key).__name__}")
    return read_key(key)
