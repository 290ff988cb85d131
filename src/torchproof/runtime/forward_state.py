"""Everything one forward pass can change, saved so that it can be put back in place.

In come the module (or None, for a function) and the arguments of a call. Out goes a
`Saved`, whose `restore()` undoes what was done since:
- the numbers in buffers, in tensors among the arguments (nested, and inside objects
  such as caches), in tensors the module keeps as attributes, in parameters and in
  `.grad`. Memory is copied by storage, once, so that views and tied weights stay
  views and tied, and is written back only where it differs;
- tensors replaced by assignment, `.grad` set or dropped, `requires_grad`, lists, dicts
  and sets that were changed, plain attributes of modules (numbers, strings, ...);
- random number generators;
- version counters, so that backward passes pending since before the call still work.

Parameters and their gradients are copied where memory allows: on their device, if they
fill at most a quarter of what is free there, else in host memory by the same rule. If
they fit nowhere, `unprotected` says so, and a change is noticed but not undone. Neither
protected are sparse tensors, attributes of other objects the module holds, what a
function closes over, and the world outside of the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.runtime.tensors.rng_state import RngState
from torchproof.runtime.tensors.storages import Key, copy_all, key_of, regions_of
from torchproof.runtime.tensors.tree import attributes, plain_tensors, walk

# Attributes of a module whose change is undone; others belong to whoever set them.
_DATA = (bool, int, float, complex, str, bytes, Tensor, list, dict, tuple, set)
_OF_EVERY_MODULE = frozenset(nn.Module().__dict__) - {"training"}


def saved(
    owner: nn.Module | None, args: Any, kwargs: Any, *, parameters: bool = True
) -> Saved:
    """Saves what a call of the owner with these arguments can change.

    Without `parameters`, those and their gradients are not copied.
    """
    return Saved(owner, args, kwargs, parameters)


class Saved:
    """What was saved. `unprotected` has a phrase for each thing that was not."""

    def __init__(
        self, owner: nn.Module | None, args: Any, kwargs: Any, parameters: bool
    ) -> None:
        self._subject = owner, args, kwargs
        refused: dict[str, None] = {}
        with _plain_mode():
            self._containers = list(_containers(owner, args, kwargs))
            self._held = [
                _Held.taken(label, tensor, refused)
                for label, tensor in tensors_of(owner, args, kwargs)
            ]
            self._regions = regions_of(
                (tensor, held.bulk) for held in self._held for tensor in held.plain
            )
            copy_all(self._regions.values(), parameters, refused)
        self.unprotected: tuple[str, ...] = tuple(refused)
        devices = {device for device, _ in self._regions}
        self.chance = RngState.taken(devices, _generators(owner, args, kwargs))

    def restore(self) -> tuple[str, ...]:
        """Puts everything back. Returns the labels of tensors it could not."""
        lost = self._changed_without_copy()
        with _plain_mode():
            for container in self._containers:
                container.restore()
            for held in self._held:
                held.restore()
            for region in self._regions.values():
                region.restore()
            self._restore_versions(lost)
        self.chance.restore()
        return lost

    def changed(self) -> dict[str, Tensor]:
        """Copies of the tensors that differ from what they were, by label."""
        then = {held.label: held for held in self._held}
        with _plain_mode():
            differing = {k for k, region in self._regions.items() if region.differs()}
            found = {}
            for label, tensor in tensors_of(*self._subject):
                held = then.get(label)
                if held is None or held.replaced_by(tensor) or held.keys & differing:
                    found[label] = tensor.detach().clone()
        return found

    def holds(self, tensor: Tensor) -> bool:
        """Whether `restore()` may write into this tensor's memory."""
        return any(key_of(each) in self._regions for each in plain_tensors(tensor))

    def _changed_without_copy(self) -> tuple[str, ...]:
        return tuple(
            held.label
            for held in self._held
            if any(self._regions[key].copy is None for key in held.keys)
            and held.versions != _versions(held.plain)
        )

    def _restore_versions(self, lost: tuple[str, ...]) -> None:
        from torchproof.torch_private import set_versions

        pairs = [
            (tensor, version)
            for held in self._held
            if held.label not in lost
            for tensor, version in zip(held.plain, held.versions, strict=True)
            if version is not None and tensor._version != version
        ]
        if pairs:
            set_versions(*zip(*pairs, strict=True))


# -- tensors ---------------------------------------------------------------------------


def tensors_of(
    owner: nn.Module | None, args: Any, kwargs: Any
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in reach of a call with its label, e.g. "buffer bn.running_mean"."""
    for label, value in _inputs(args, kwargs):
        if isinstance(value, Tensor):
            yield label, value
    if owner is None:
        return
    for name, buffer in owner.named_buffers(remove_duplicate=False):
        yield f"buffer {name}", buffer
    for path, module in owner.named_modules():
        for name, kept in _attributes(module).items():
            dotted = f"attribute {path}.{name}" if path else f"attribute {name}"
            for label, value in walk(kept, dotted, objects=False):
                if isinstance(value, Tensor):
                    yield label, value
    for name, parameter in owner.named_parameters(remove_duplicate=False):
        yield f"parameter {name}", parameter
        if parameter.grad is not None:
            yield f".grad of {name}", parameter.grad


@dataclass(frozen=True)
class _Held:
    """A tensor as it was: which memory it showed, and what autograd knew of it."""

    label: str
    tensor: Tensor
    alias: Tensor
    plain: tuple[Tensor, ...]  # without wrappers, those whose memory can be copied
    keys: frozenset[Key]
    versions: tuple[int | None, ...]
    requires_grad: bool
    gradient: Tensor | None  # of a leaf

    @classmethod
    def taken(cls, label: str, tensor: Tensor, refused: dict[str, None]) -> _Held:
        plain = []
        for each in plain_tensors(tensor):
            if nn.parameter.is_lazy(each):
                refused[f"{label}: a lazy module has not created it yet"] = None
            elif each.layout is not torch.strided:
                refused[f"{label}: a tensor of layout {each.layout}"] = None
            elif each.device.type != "meta":
                plain.append(each)
        lazy = nn.parameter.is_lazy(tensor)
        return cls(
            label,
            tensor,
            tensor if lazy else tensor.detach(),
            tuple(plain),
            frozenset(key_of(each) for each in plain if each.numel()),
            _versions(plain),
            tensor.requires_grad,
            tensor.grad if tensor.is_leaf else None,
        )

    @property
    def bulk(self) -> bool:
        return self.label.startswith(("parameter ", ".grad "))

    def replaced_by(self, tensor: Tensor) -> bool:
        return tensor is not self.tensor or not self._shows_the_same()

    def _shows_the_same(self) -> bool:
        """Whether it is still a view of the memory it was a view of."""
        return not self.plain or _views(self.tensor) == _views(self.alias)

    def restore(self) -> None:
        if not self._shows_the_same():
            self.tensor.data = self.alias
        if not self.tensor.is_leaf:
            return
        if self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)
        if self.tensor.grad is not self.gradient:
            self.tensor.grad = self.gradient


def _views(tensor: Tensor) -> list[tuple[Any, ...]]:
    return [
        (key_of(each), each.storage_offset(), each.shape, each.stride())
        for each in plain_tensors(tensor)
        if each.layout is torch.strided
    ]


def _versions(plain: Iterable[Tensor]) -> tuple[int | None, ...]:
    return tuple(None if each.is_inference() else each._version for each in plain)


@contextlib.contextmanager
def _plain_mode() -> Iterator[None]:
    """What is made here can be written to in any mode, and nothing is recorded."""
    with torch.inference_mode(False), torch.no_grad():
        yield


# -- Python ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Container:
    """A list, set or dict and what was in it; of `own` attributes only data counts."""

    live: Any
    copy: Any
    own: bool = False

    def restore(self) -> None:
        if self.own:
            self._restore_attributes()
        elif isinstance(self.live, set):
            if self.live != self.copy:
                self.live.clear()
                self.live.update(self.copy)
        elif not _same_parts(self.live, self.copy):
            self.live.clear()
            if isinstance(self.live, list):
                self.live.extend(self.copy)
            else:
                for key, value in self.copy.items():
                    self.live[key] = value

    def _restore_attributes(self) -> None:
        for name in [n for n in _data(self.live) if n not in self.copy]:
            del self.live[name]
        for name, value in self.copy.items():
            now = self.live.get(name)
            if now is not value and (now is None or isinstance(now, _DATA)):
                self.live[name] = value


def _same_parts(live: Any, copy: Any) -> bool:
    if len(live) != len(copy):
        return False
    if isinstance(live, dict):
        if list(live) != list(copy):
            return False
        live, copy = live.values(), copy.values()
    return all(one is other for one, other in zip(live, copy, strict=True))


def _containers(
    owner: nn.Module | None, args: Any, kwargs: Any
) -> Iterator[_Container]:
    values = [value for _, value in _inputs(args, kwargs)]
    for module in owner.modules() if owner is not None else ():
        own = _attributes(module)
        yield _Container(module.__dict__, dict(own), own=True)
        values += [module._buffers, module._parameters]
        values.append(module._non_persistent_buffers_set)
        for kept in own.values():
            values += [part for _, part in walk(kept, "", objects=False)]
    for value in values:
        held = attributes(value)
        if held is not None and not isinstance(value, list | dict | set):
            yield _Container(held, dict(held))
        elif isinstance(value, list | dict | set):
            kind = next(k for k in (list, dict, set) if isinstance(value, k))
            yield _Container(value, kind(value))


def _inputs(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    for i, value in enumerate(args):
        yield from walk(value, f"input {i}")
    for name, value in kwargs.items():
        yield from walk(value, f"input {name}")


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What the module keeps as plain attributes, of the kinds that are put back."""
    return _data(module.__dict__)


def _data(held: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in held.items()
        if name not in _OF_EVERY_MODULE and (value is None or isinstance(value, _DATA))
    }


def _generators(
    owner: nn.Module | None, args: Any, kwargs: Any
) -> list[torch.Generator]:
    values = [value for _, value in _inputs(args, kwargs)]
    for module in owner.modules() if owner is not None else ():
        values += module.__dict__.values()
    found = {id(each): each for each in values if isinstance(each, torch.Generator)}
    return list(found.values())
