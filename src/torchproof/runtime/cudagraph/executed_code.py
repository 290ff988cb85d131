"""Finds the Python code that one eager call of a step executes, and the names it reads.

Takes a call inside an `Execution` context. Collects all functions that ran, whoever
called them (`__getattr__`, `__len__`, properties, hooks, functions found by a computed
name); their arguments; the objects whose attributes are looked up by a computed name;
and calls of C functions that may return something else the next time.

A deterministic program takes the same path as long as everything it reads is the same.
So before a replay, only what these functions can read has to be compared.
"""

from __future__ import annotations

import dis
import functools
import gc
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchproof.records import Namespace, whose
from torchproof.runtime.cudagraph.graph_status import Stop
from torchproof.runtime.cudagraph.object_state import ATOMS, CONTAINERS, words
from torchproof.runtime.cudagraph.watched_places import (
    HEAP_TYPE,
    isinstance_of,
    items_of,
)

_LOOKUPS = frozenset({"getattr", "hasattr"})
# Code that uses one of these names may read any attribute of its objects, also
# "{0.name}".format(o).
_WHOLE_LOOKUPS = words(
    """
    vars dir locals __dict__ __getattribute__ attrgetter format format_map repr
    """
)
_NAMED_LOOKUPS = (
    _LOOKUPS
    | _WHOLE_LOOKUPS
    | {"__getattr__", "methodcaller", "import_module", "__import__", "modules"}
)
# Code below these files does not affect the result of a step.
_SINKS = ("/logging/", "/warnings.py", "/traceback.py", "/linecache.py")
_IMPORTS = ("<frozen importlib", "<frozen zipimport")
_OF_RECORDER = ("/cudagraph/eager_recorder.py", "/cudagraph/host_tensors.py")
# Methods of a tensor that are no operations: they read its memory, or look at its
# storage beyond the elements of the tensor.
MEMORY_READS = frozenset({"tolist", "numpy"})
STORAGE_READS = frozenset({"storage_offset", "untyped_storage"})
_TENSOR_READS = MEMORY_READS | STORAGE_READS
_DEPTH = 3  # attribute steps from a local variable to an object that is looked into

# C modules of the standard library, without a leading underscore, whose functions
# depend only on their arguments, or on watched state.
_PURE = words(
    """
    builtins math cmath operator itertools functools collections abc re sre struct
    binascii zlib json string unicodedata bisect heapq weakref contextvars thread
    threading array ctypes types typing warnings datetime decimal random codecs pickle
    hashlib md5 sha1 sha2 sha3 sha256 sha512 blake2
    """
)
# The context of decimal is thread-local.
_IMPURE_NAMES = words("input open now utcnow today __subclasses__ _getframe getcontext")
_HARMLESS_NAMES = words(
    """
    sleep fspath getpid write flush isatty collect isenabled intern exc_info exception
    audit getdefaultencoding getfilesystemencoding
    """
)


class Reads(NamedTuple):
    """The names in the bytecode of a function, and of functions defined in it."""

    globals: frozenset[str]
    attributes: frozenset[str]
    # a global and the attributes that are read from it
    chains: frozenset[tuple[str, ...]]
    imports: frozenset[str]
    strings: frozenset[str]  # constants that may be attribute names
    computes_names: bool  # `getattr(o, name)`, `vars(o)`

    def merged(self, other: Reads) -> Reads:
        return Reads(*map(operator.or_, self, other))


@functools.lru_cache(maxsize=16384)
def reads_of(code: types.CodeType) -> Reads:
    """What the code reads, by name."""
    names: dict[str, set[str]] = {"global": set(), "attribute": set(), "import": set()}
    chains: set[tuple[str, ...]] = set()
    chain: tuple[str, ...] = ()
    instructions = list(dis.get_instructions(code))
    for step in instructions:
        kind = _kind_of(step)
        if kind is None:
            chain = chain if step.opname in _TRANSPARENT else ()
            continue
        names[kind].add(step.argval)
        if kind == "global":
            chain = (step.argval,)
        elif kind == "attribute" and chain:
            chain = (*chain, step.argval)
        if chain:
            chains.add(chain)
    mentioned = names["global"] | names["attribute"]
    strings: set[str] = set()
    if mentioned & _NAMED_LOOKUPS or names["import"]:
        words = [w for w in _words(code.co_consts) if _is_name(w)]
        strings.update(words, *(word.split(".") for word in words))
    reads = Reads(
        frozenset(names["global"]),
        frozenset(names["attribute"]),
        frozenset(chains),
        frozenset(names["import"]),
        frozenset(strings),
        bool(mentioned & _WHOLE_LOOKUPS) or _has_computed_name(instructions),
    )
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return functools.reduce(Reads.merged, map(reads_of, inner), reads)


def _is_name(word: str) -> bool:
    """Whether it may be a name or a dotted name."""
    return word.replace(".", "_").isidentifier()


def _words(constants: Iterable[Any]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, tuple | frozenset):
            yield from _words(each)


_TRANSPARENT = ("CACHE", "PUSH_NULL", "NOT_TAKEN", "EXTENDED_ARG")


def _kind_of(step: dis.Instruction) -> str | None:
    name = step.opname
    if not isinstance(step.argval, str):
        return None
    if name in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL") or "_OR_GLOBALS" in name:
        return "global"
    if name == "IMPORT_NAME":
        return "import"
    if name.endswith(("_ATTR", "_METHOD")) or name == "IMPORT_FROM":
        return "attribute"
    return None


def _has_computed_name(instructions: list[dis.Instruction]) -> bool:
    """Whether it reads attributes by a name that is not a constant."""
    for place, step in enumerate(instructions):
        if step.opname == "MATCH_CLASS":
            return True
        looks_up = step.opname == "LOAD_GLOBAL" and step.argval in _LOOKUPS
        if looks_up and not _is_constant_lookup(instructions[place + 1 :]):
            return True
    return False


def _is_constant_lookup(rest: list[dis.Instruction]) -> bool:
    """Whether the second argument of the call that starts here is a constant."""
    depth = 0
    constant = False
    for step in rest:
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return False
        if step.opname in ("KW_NAMES", *_TRANSPARENT):
            continue
        before = depth
        depth += dis.stack_effect(step.opcode, step.arg)
        if depth <= 0 and step.opname.startswith(("PRECALL", "CALL")):
            return constant
        if before == 1 and depth == 2:  # the second argument starts
            constant = step.opname == "LOAD_CONST"
        elif depth == 2 and before != 1:  # it has several instructions
            constant = constant and before == 2
    return False


class _CodeFacts:
    """What a profile function needs of code that ran, each time that it runs."""

    __slots__ = ("code", "computes_names", "is_noted", "owner")

    def __init__(self, code: types.CodeType, owner: str) -> None:
        self.code = code  # kept alive, so that its id stays unique
        self.owner = owner
        self.is_noted = False
        # Objects that torch's own functions look up are not noted.
        self.computes_names = (
            owner not in ("sink", "internal", "torch") and reads_of(code).computes_names
        )


class Execution:
    """The code that ran in this thread inside the context, or was added to it.

    `handle_read` is called with each tensor whose memory or storage Python reads, and
    with the name of the method that does.
    """

    def __init__(
        self, handle_read: Callable[[Tensor, str], None] = lambda tensor, method: None
    ) -> None:
        self._handle_read = handle_read
        self.codes: dict[types.CodeType, Namespace] = {}  # with their globals
        self.names: set[str] = set()  # passed to `__getattr__` and similar functions
        self.stops: list[Stop] = []
        self._arguments: dict[int, _ObjectReference] = {}
        self._looked_up: dict[int, _ObjectReference] = {}
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._codes: dict[int, _CodeFacts] = {}  # by id, since hashing code is slow
        self._muted = 0

    # -- watching ------------------------------------------------------------------

    def add(self, other: Execution) -> bool:
        """Adds another execution; returns whether it has new code or names."""
        size = len(self.codes) + len(self.names)
        self.codes |= other.codes
        self.names |= other.names
        for references, added in (
            (self._arguments, other._arguments),
            (self._looked_up, other._looked_up),
        ):
            references.update(added)
            for number in [n for n, each in references.items() if each.is_alone()]:
                del references[number]
        return len(self.codes) + len(self.names) > size

    def __enter__(self) -> None:
        # A profiler sees its own thread only: the backward runs in it as well.
        self._multithreading = torch.autograd.set_multithreading_enabled(False)
        for callback in gc.callbacks:  # they run at any time, independently of the step
            if isinstance(callback, types.FunctionType | types.MethodType):
                self._meet(callback.__code__, owner="sink")
        sys.setprofile(self._note)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        self._multithreading.__exit__(*error)

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        facts = self._codes.get(id(frame.f_code))
        if facts is None:
            facts = self._meet(frame.f_code)
        owner = facts.owner
        if owner == "sink":
            self._muted += {"call": 1, "return": -1}.get(event, 0)
        elif self._muted:
            return
        elif event == "c_call":
            if argument.__name__ in _TENSOR_READS and _is_of_tensor(argument):
                self._handle_read(argument.__self__, argument.__name__)
            elif owner != "internal" and owner != "torch":
                self._note_call_of_c(frame, owner, argument)
        elif owner == "internal":
            return
        elif event == "call":
            self._note_call(frame, facts)
        elif event == "return":
            if facts.computes_names:
                self._note_lookups(frame, owner)
            self._note_returned(frame.f_back, argument)

    def _meet(self, code: types.CodeType, owner: str | None = None) -> _CodeFacts:
        facts = self._codes[id(code)] = _CodeFacts(code, owner or owner_of(code))
        return facts

    def _note_call(self, frame: types.FrameType, facts: _CodeFacts) -> None:
        code = frame.f_code
        if facts.owner == "torch":
            if not facts.is_noted:
                self.codes.setdefault(code, frame.f_globals)
                facts.is_noted = True
            return
        self.codes.setdefault(code, frame.f_globals)
        values = list(frame.f_locals.values())
        for value in values:
            if not isinstance_of(value, ATOMS) and _has_attributes(type(value)):
                self._arguments.setdefault(id(value), _ObjectReference(value))
        if facts.computes_names or code.co_name.startswith("__getattr"):
            self.names.update(v for v in values if type(v) is str and v.isidentifier())

    def _note_call_of_c(self, frame: types.FrameType, owner: str, called: Any) -> None:
        if (why := _why_impure(called, owner)) and len(self.stops) < 20:
            code = frame.f_code
            where = code.co_filename, frame.f_lineno, code.co_qualname
            self.stops.append(Stop("python", why, None, *where))
        if reads_of(frame.f_code).computes_names:
            self._note_lookups(frame, owner)

    def _note_returned(self, caller: types.FrameType | None, value: Any) -> None:
        """Notes an object that the caller looks into without a name for it."""
        facts = None if caller is None else self._codes.get(id(caller.f_code))
        if facts is not None and facts.computes_names:
            self._note_objects(reads_of(facts.code), [value])

    def _note_lookups(self, frame: types.FrameType, owner: str) -> None:
        """Notes every object whose attributes the code could look up."""
        reads = reads_of(frame.f_code)
        values = list(frame.f_locals.values())
        if owner != "standard":  # the standard library only reads its arguments
            values += map(frame.f_globals.get, reads.globals)
        self._note_objects(reads, values)

    def _note_objects(self, reads: Reads, values: list[Any]) -> None:
        """Notes these objects and those that the code can reach from them."""
        objects: dict[int, Any] = {}
        names = reads.attributes | reads.strings
        for _ in range(_DEPTH):
            values = [each for each in values if id(each) not in objects]
            objects |= {id(each): each for each in values}
            values = [p for each in values for p in _parts(each, names)]
        for number, each in objects.items():
            if isinstance_of(each, ATOMS):
                continue
            if _has_attributes(type(each)) or isinstance_of(each, _NAMESPACES):
                self._looked_up.setdefault(number, _ObjectReference(each))

    # -- what was seen -------------------------------------------------------------

    def is_looked_up(self, value: Any) -> bool:
        """Whether the code may have read any attribute of an object."""
        reference = self._looked_up.get(id(value))
        return reference is not None and reference.get() is value

    def mentions(self, names: frozenset[str]) -> bool:
        """Whether the code may read attributes with one of these names."""
        return not names.isdisjoint(self.names) or any(
            not names.isdisjoint(reads.attributes | reads.strings)
            for reads in map(reads_of, self.codes)
        )

    def arguments(self) -> Iterator[Any]:
        """The arguments of functions that still exist."""
        for reference in self._arguments.values():
            if (value := reference.get()) is not None:
                yield value

    def functions_of(
        self, codes: Iterable[types.CodeType]
    ) -> Iterator[types.FunctionType]:
        """All existing functions with this code."""
        missing = [code for code in codes if code not in self._functions]
        if missing:
            self._functions |= {code: [] for code in missing}
            for each in gc.get_referrers(*missing):
                if type(each) is types.FunctionType and each.__code__ in missing:
                    self._functions[each.__code__].append(each)
        for code in codes:
            yield from self._functions[code]


def _is_of_tensor(called: Any) -> bool:
    return isinstance_of(getattr(called, "__self__", None), (Tensor,))


class _ObjectReference:
    """A weak reference to an object, or a strong one if it supports no weak one."""

    __slots__ = ("_reference", "_value")

    def __init__(self, value: Any) -> None:
        self._reference: weakref.ref[Any] | None
        try:
            self._reference = weakref.ref(value)
            self._value = None
        except TypeError:
            self._reference = None
            self._value = value

    def get(self) -> Any:
        """The object; None if it no longer exists."""
        return self._value if self._reference is None else self._reference()

    def is_alone(self) -> bool:
        """Whether nothing else refers to the object, because the call created it."""
        if self._reference is not None:
            return self._reference() is None
        return sys.getrefcount(self._value) <= 2  # `self._value` and the argument


def _has_attributes(kind: type) -> bool:
    if issubclass(kind, Tensor | types.ModuleType | types.FunctionType | type):
        return False
    return bool(kind.__flags__ & HEAP_TYPE) or kind is types.SimpleNamespace


_NAMESPACES = (type, types.ModuleType)


def _parts(value: Any, names: Iterable[str]) -> list[Any]:
    """The parts of a container, or the attributes of an object with these names."""
    if isinstance_of(value, (dict,)):
        return list(dict.values(value))
    if isinstance_of(value, CONTAINERS):
        parts = list(items_of(value).read(value))
        return parts if len(parts) < 1000 else []
    if isinstance_of(value, ATOMS):
        return []
    try:
        attributes = object.__getattribute__(value, "__dict__")
        return [attributes[name] for name in names if name in attributes]
    except (AttributeError, TypeError):
        return []


@functools.lru_cache(maxsize=16384)
def owner_of(code: types.CodeType) -> str:
    """The owner of code: user, library, torch or standard.

    Code of an `internal` owner is not followed; code below a `sink` is ignored.
    """
    file = code.co_filename.replace("\\", "/")
    if file.startswith(_IMPORTS):
        return "sink"
    owner = whose(code.co_filename)
    if file == "<frozen abc>" or (owner == "standard" and file.endswith("/abc.py")):
        return "internal"  # the snapshot compares what is registered
    if owner == "standard":
        return "sink" if any(name in file for name in _SINKS) else owner
    if owner == "generated":
        return "standard" if file.startswith("<frozen") else "user"
    if owner == "torch":
        return "internal" if "/_" in file.rpartition("-packages/")[2] else owner
    if owner == "torchproof":
        # The eager recorder's own helpers are no code of the step.
        in_recorder = file.endswith(_OF_RECORDER)
        is_helper = in_recorder and code.co_name != "__torch_dispatch__"
        return "sink" if is_helper else "internal"
    return owner


def _why_impure(called: Any, caller: str) -> str | None:
    """Why a C function may return something else the next time; None if it does not."""
    bound = getattr(called, "__self__", None)
    name = getattr(called, "__name__", "")
    if bound is None or isinstance(bound, types.ModuleType):
        module = getattr(called, "__module__", None) or getattr(bound, "__name__", "")
    else:
        module = _definer_of(bound, name).__module__
    top = str(module).partition(".")[0]
    if top not in sys.stdlib_module_names and top not in sys.builtin_module_names:
        return None
    if name in _HARMLESS_NAMES or (
        top.lstrip("_") in _PURE and name not in _IMPURE_NAMES
    ):
        return None
    if top == "sys" and caller == "standard":  # for example to limit a loop
        return None
    return (
        f"the step calls {top}.{name}, whose result may differ at every call: call it"
        " outside of the step"
    )


def _definer_of(bound: Any, name: str) -> type:
    """The class that defines a method of an object or of a class."""
    kinds = type(bound).__mro__
    if issubclass(type(bound), type):
        kinds = (*type.__dict__["__mro__"].__get__(bound), *kinds)
    return next((kind for kind in kinds if name in kind.__dict__), type(bound))
