"""Saves everything that one forward pass can change, and restores it in place.

`save_state` takes the module (or None, for a function) and the arguments of a call, and
returns a `SavedState`. Its `restore()` undoes all changes since to:
- the values of buffers, of tensors among the arguments (nested, and inside objects such
  as caches), of tensors that are attributes of modules, of parameters and of `.grad`.
  Memory is copied once per storage, so that views and tied weights stay views and tied.
  It is written back only where it differs;
- tensors replaced by assignment, `.grad` set or dropped, `requires_grad`, lists, dicts
  and sets, and plain attributes of modules (numbers, strings, ...);
- random number generators;
- version counters, so that a backward pass pending since before the call still works.

Parameters and their gradients are copied if memory allows: on their device if they fill
at most a quarter of its free memory, else in host memory by the same rule. If neither
has room, `unprotected` says so, and `restore()` reports a change without undoing it.
Attributes of other objects that the module references, closures of a function, and
everything outside the process are not saved. `iterators` are among the arguments or
attributes: running on with them changes them, and they cannot be set back.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.records import Namespace
from torchproof.runtime.tensors.rng_state import RngState
from torchproof.runtime.tensors.storages import Key, copy_all, key_of, regions_of
from torchproof.torch_private import comparison, trees

# Types of module attributes that are restored.
_DATA = (bool, int, float, complex, str, bytes, Tensor, list, dict, tuple, set)
_OF_EVERY_MODULE = frozenset(nn.Module().__dict__) - {"training"}


def save_state(
    owner: nn.Module | None, args: Any, kwargs: Any, *, parameters: bool = True
) -> SavedState:
    """Saves what a call of the owner with these arguments can change.

    Without `parameters`, parameters and their gradients are not copied.
    """
    return SavedState(owner, args, kwargs, parameters)


class SavedState:
    """The state before a call; `unprotected` names what could not be saved, and why."""

    def __init__(
        self, owner: nn.Module | None, args: Any, kwargs: Any, parameters: bool
    ) -> None:
        self._subject = owner, args, kwargs
        refused: dict[str, None] = {}
        with _plain_mode():
            self._containers = list(_containers(owner, args, kwargs))
            self._tensors = [
                _SavedTensor.of(label, tensor, refused)
                for label, tensor in tensors_of(owner, args, kwargs)
            ]
            self._regions = regions_of(
                (tensor, each.bulk) for each in self._tensors for tensor in each.plain
            )
            copy_all(self._regions.values(), parameters, refused)
        self.unprotected: tuple[str, ...] = tuple(refused)
        devices = {device for device, _ in self._regions}
        self.rng = RngState.capture(devices, _generators(owner, args, kwargs))

    def restore(self) -> tuple[str, ...]:
        """Restores everything; returns the labels of tensors it could not restore."""
        not_restored = self._changed_without_copy()
        with _plain_mode():
            for container in self._containers:
                container.restore()
            for each in self._tensors:
                each.restore()
            for region in self._regions.values():
                region.restore()
            self._restore_versions(not_restored)
        self.rng.restore()
        return not_restored

    def changed(self) -> dict[str, Tensor]:
        """Copies of the tensors that differ from the saved state, by label."""
        by_label = {each.label: each for each in self._tensors}
        copies = {}
        with _plain_mode():
            differing = {k for k, region in self._regions.items() if region.differs()}
            for label, tensor in tensors_of(*self._subject):
                before = by_label.get(label)
                if (
                    before is None
                    or before.replaced_by(tensor)
                    or before.keys & differing
                ):
                    copies[label] = tensor.detach().clone()
        return copies

    def holds(self, tensor: Tensor) -> bool:
        """Whether `restore()` may write into this tensor's memory."""
        return any(
            key_of(each) in self._regions for each in comparison.in_memory(tensor)
        )

    def _changed_without_copy(self) -> tuple[str, ...]:
        return tuple(
            each.label
            for each in self._tensors
            if any(self._regions[key].copy is None for key in each.keys)
            and each.versions != _versions(each.plain)
        )

    def _restore_versions(self, not_restored: tuple[str, ...]) -> None:
        from torchproof.torch_private import set_versions

        pairs = [
            (tensor, version)
            for each in self._tensors
            if each.label not in not_restored
            for tensor, version in zip(each.plain, each.versions, strict=True)
            if version is not None and tensor._version != version
        ]
        if pairs:
            set_versions(*zip(*pairs, strict=True))


# -- tensors ---------------------------------------------------------------------------


def tensors_of(
    owner: nn.Module | None, args: Any, kwargs: Any
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a call can reach, with a label as "buffer bn.running_mean"."""
    for label, value in inputs_of(args, kwargs):
        if isinstance(value, Tensor):
            yield label, value
    if owner is None:
        return
    for name, buffer in owner.named_buffers(remove_duplicate=False):
        yield f"buffer {name}", buffer
    for path, module in owner.named_modules():
        for name, attribute in _attributes(module).items():
            dotted = f"attribute {path}.{name}" if path else f"attribute {name}"
            for label, value in trees.walk(attribute, dotted):
                if isinstance(value, Tensor):
                    yield label, value
    for name, parameter in owner.named_parameters(remove_duplicate=False):
        yield f"parameter {name}", parameter
        if parameter.grad is not None:
            yield f".grad of {name}", parameter.grad


@dataclass(frozen=True)
class _SavedTensor:
    """A tensor before the call: the memory it showed, and its autograd state."""

    label: str
    tensor: Tensor
    alias: Tensor
    plain: tuple[Tensor, ...]  # the inner tensors whose memory can be copied
    keys: frozenset[Key]
    versions: tuple[int | None, ...]
    requires_grad: bool
    gradient: Tensor | None  # of a leaf

    @classmethod
    def of(cls, label: str, tensor: Tensor, refused: dict[str, None]) -> _SavedTensor:
        plain = []
        for each in comparison.plain_tensors(tensor):
            if nn.parameter.is_lazy(each):
                refused[f"{label}: a lazy module has not created it yet"] = None
            elif each.device.type != "meta":
                parts = list(comparison.in_memory(each))
                if not parts:
                    refused[f"{label}: a tensor of layout {each.layout}"] = None
                plain += parts
        lazy = nn.parameter.is_lazy(tensor)
        return cls(
            label=label,
            tensor=tensor,
            alias=tensor if lazy else tensor.detach(),
            plain=tuple(plain),
            keys=frozenset(key_of(each) for each in plain if each.numel()),
            versions=_versions(plain),
            requires_grad=tensor.requires_grad,
            gradient=tensor.grad if tensor.is_leaf else None,
        )

    @property
    def bulk(self) -> bool:
        return self.label.startswith(("parameter ", ".grad "))

    def replaced_by(self, tensor: Tensor) -> bool:
        return tensor is not self.tensor or not self._shows_the_same()

    def _shows_the_same(self) -> bool:
        """Whether it still views the same memory."""
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
        for each in comparison.in_memory(tensor)
    ]


def _versions(plain: Iterable[Tensor]) -> tuple[int | None, ...]:
    return tuple(None if each.is_inference() else each._version for each in plain)


@contextlib.contextmanager
def _plain_mode() -> Iterator[None]:
    """Tensors made here can be written to in any mode; autograd records nothing."""
    with torch.inference_mode(False), torch.no_grad():
        yield


# -- containers and attributes ---------------------------------------------------------


@dataclass(frozen=True)
class _Container:
    """A list, set or dict and its copy; in a module's `__dict__` only data counts."""

    live: Any
    copy: Any
    of_module: bool = False

    def restore(self) -> None:
        if self.of_module:
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
    values = [value for _, value in inputs_of(args, kwargs)]
    for module in owner.modules() if owner is not None else ():
        data = _attributes(module)
        yield _Container(module.__dict__, dict(data), of_module=True)
        values += [module._buffers, module._parameters]
        values.append(module._non_persistent_buffers_set)
        for attribute in data.values():
            values += [part for _, part in trees.walk(attribute, "")]
    for value in values:
        own = trees.attributes(value)
        if own is not None and not isinstance(value, list | dict | set):
            yield _Container(own, dict(own))
        elif isinstance(value, list | dict | set):
            kind = next(k for k in (list, dict, set) if isinstance(value, k))
            yield _Container(value, kind(value))


def inputs_of(args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Every part of the arguments of a call, with a label as `input 0.mask`."""
    for i, value in enumerate(args):
        yield from trees.walk(value, f"input {i}", objects=True)
    for name, value in kwargs.items():
        yield from trees.walk(value, f"input {name}", objects=True)


def iterators(owner: nn.Module | None, args: Any, kwargs: Any) -> list[str]:
    """Labels of iterators and files that a call can read on.

    A second run of the call would go on where the first one stopped.
    """
    found = [
        label
        for label, value in inputs_of(args, kwargs)
        if isinstance(value, Iterator | io.IOBase)
    ]
    for path, module in owner.named_modules() if owner is not None else ():
        found += [
            f"attribute {path}.{name}" if path else f"attribute {name}"
            for name, value in module.__dict__.items()
            if isinstance(value, Iterator)
        ]
    return found


def _attributes(module: nn.Module) -> Namespace:
    """The plain attributes of a module whose types are restored."""
    return _data(module.__dict__)


def _data(attributes: Namespace) -> Namespace:
    return {
        name: value
        for name, value in attributes.items()
        if name not in _OF_EVERY_MODULE and (value is None or isinstance(value, _DATA))
    }


def _generators(
    owner: nn.Module | None, args: Any, kwargs: Any
) -> list[torch.Generator]:
    values = [value for _, value in inputs_of(args, kwargs)]
    for module in owner.modules() if owner is not None else ():
        values += module.__dict__.values()
    by_id = {id(each): each for each in values if isinstance(each, torch.Generator)}
    return list(by_id.values())
