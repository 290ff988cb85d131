"""Loads a deploy pack: `model = torchproof.load("pack", model)`.

Takes the path of a pack and a model, returns the compiled model. If the pack is
untrusted or incompatible with this machine or model, `load` logs why and compiles the
model as usual. Start with `open_model.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torchproof.records import UserError
from torchproof.runtime.pack_format.contents import open_pack
from torchproof.runtime.pack_format.keys import read_key
from torchproof.runtime.pack_format.manifest import Refused
from torchproof.runtime.pack_format.trust import assert_trusted

if TYPE_CHECKING:
    from torchproof.runtime.loading.pack_agreement import PackAgreement

__all__ = ["PackRefused", "load"]


class PackRefused(Refused):
    """The pack was refused, and `strict` is set or there is no model to compile."""


Key = str | os.PathLike[str] | bytes | None


def load(
    pack: str | os.PathLike[str],
    model: Any = None,
    *,
    key: Key = None,
    strict: bool = False,
    warm: bool = True,
    wait: bool = True,
) -> Any:
    """Returns the model, compiled from the code in the pack.

    `key` is the public key of the pack's signature, as a file or as bytes. If the pack
    is refused, the model is compiled with `torchproof.compile`; with `strict`, or
    without a model, `torchproof.PackRefused` is raised instead. With `warm`, every call
    of the pack runs once before this returns. With `wait=False`, a call for which
    there is no code runs eager while it is compiled. `torchproof.status` reports what
    came from the pack.
    """
    if os.environ.get("TORCHPROOF_DISABLE") == "1" and model is not None:
        return model
    if not isinstance(pack, str | os.PathLike):
        raise UserError(f"load: pack must be a path, not a {type(pack).__name__}")
    for name, value in {"strict": strict, "warm": warm, "wait": wait}.items():
        if not isinstance(value, bool):
            raise UserError(f"{name}={value!r}: must be True or False")
    if model is not None and not callable(model):
        raise UserError(
            f"load: {type(model).__name__} is not callable, so it is not a model"
        )
    path, public_key = os.fspath(pack), _public_key(key)
    return _load(path, model, public_key, strict=strict, warm=warm, wait=wait)


def _load(
    pack: str,
    model: Any,
    public_key: bytes | None,
    *,
    strict: bool,
    warm: bool,
    wait: bool,
) -> Any:
    ranks = None
    if model is not None:  # without one, there is no module that other ranks share
        from torchproof.runtime.loading.pack_agreement import PackAgreement

        ranks = PackAgreement.here()
    try:
        _assert_exists(pack, ranks)
        contents = open_pack(pack)
        assert_trusted(contents, public_key)
        from torchproof.runtime.loading import open_model

        return open_model.open_model(contents, model, warm=warm, wait=wait, ranks=ranks)
    except (Refused, OSError) as error:
        why = str(error)
        if ranks is not None:
            ranks.refuse(why)
        if strict or model is None:
            raise PackRefused(why) from None
        from torchproof.runtime.loading import open_model

        return open_model.compile_without_pack(model, pack, why, ranks, wait=wait)


def _assert_exists(pack: str, ranks: PackAgreement | None) -> None:
    """A path that exists nowhere is a mistake; one that other ranks have is refused."""
    if os.path.lexists(pack):
        return
    if ranks is not None:
        ranks.refuse(f"there is no {pack}", is_missing=True)
        if not ranks.all_miss_it:
            raise Refused(f"there is no {pack}: copy it to the machine of every rank")
    raise UserError(
        f"no pack {pack}: build one with torchproof pack TARGET --for deploy"
    )


def _public_key(key: Key) -> bytes | None:
    if isinstance(key, bytes):
        return key
    if key is not None and not isinstance(key, str | os.PathLike):
        raise UserError(f"key: must be a file or bytes, not a {type(key).__name__}")
    return read_key(key)
