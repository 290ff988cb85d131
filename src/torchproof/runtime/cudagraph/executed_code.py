"""The Python code that runs in one eager call of a step, and the names it reads.

In goes a call under `Execution`. Out come the functions that ran, whoever called them
(`__getattr__`, `__len__`, properties, hooks, functions found by a computed name); the
objects they were called with; the objects whose attributes are looked up by a computed
name; and calls of C functions whose answer may be another one the next time.

A deterministic program takes the same path as long as everything it has read is the
same. So what the functions that ran can read is all that a replay has to compare.
"""

from __future__ import annotations

import abc
import dis
import functools
import gc
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchproof.records import whose
from torchproof.runtime.cudagraph.graph_status import Stop
from torchproof.runtime.cudagraph.object_state import ATOMS

_LOOKUPS = frozenset({"getattr", "hasattr"})
# Code that names one of these may read any attribute of an object in its sight.
_WHOLE_LOOKUPS = frozenset(
    {
        *("vars", "dir", "locals", "__dict__", "__getattribute__", "attrgetter"),
        *("format", "format_map", "repr"),  # "{0.name}".format(o)
    }
)
_NAMED_LOOKUPS = _LOOKUPS | _WHOLE_LOOKUPS
_NAMED_LOOKUPS |= {"__getattr__", "methodcaller", "import_module", "__import__"}
_NAMED_LOOKUPS |= {"modules"}
# What runs below these neither decides an answer nor is compared.
_SINKS = ("/logging/", "/warnings.py", "/traceback.py", "/linecache.py")
_IMPORTS = ("<frozen importlib", "<frozen zipimport")
_DEPTH = 3  # attributes from a local variable to an object whose attributes are read

# Modules of the standard library in C whose functions answer by their arguments alone,
# or read what is watched.
_PURE = frozenset(
    {
        *("builtins", "math", "cmath", "_operator", "operator", "itertools"),
        *("functools", "_functools", "collections", "_collections", "_abc", "abc"),
        *("re", "_sre", "_struct", "struct", "binascii", "zlib", "_json", "json"),
        *("_string", "unicodedata", "_bisect", "_heapq", "_weakref", "weakref"),
        *("_contextvars", "contextvars", "_thread", "threading", "array", "_ctypes"),
        *("ctypes", "types", "_typing", "typing", "copy", "enum", "_warnings"),
        *("_datetime", "datetime", "decimal", "_decimal", "_random", "random"),
        *("_codecs", "_pickle", "_opcode", "_ast", "_imp", "atexit", "_signal"),
        *("_hashlib", "_md5", "_sha1", "_sha256", "_sha512", "_sha2", "_blake2"),
        *("_sha3", "_collections_abc", "faulthandler", "_tracemalloc", "numbers"),
    }
)
_IMPURE_NAMES = frozenset(
    {
        *("input", "open", "now", "utcnow", "today", "__subclasses__", "_getframe"),
        "getcontext",  # of decimal: its precision is the thread's
    }
)
_HARMLESS_NAMES = frozenset(
    {
        *("sleep", "fspath", "getpid", "write", "flush", "isatty", "collect"),
        *("isenabled", "intern", "exc_info", "exception", "audit"),
        *("getdefaultencoding", "getfilesystemencoding"),
    }
)


@dataclass(frozen=True)
class Reads:
    """What a function's bytecode names."""

    globals: frozenset[str]
    attributes: frozenset[str]
    chains: frozenset[tuple[str, ...]]  # a global and the attributes read from it
    imports: frozenset[str]
    strings: frozenset[str]  # constants that may be names of attributes
    computes_names: bool  # of attributes: `getattr(o, name)`, `vars(o)`


@functools.lru_cache(maxsize=16384)
def reads_of(code: types.CodeType) -> Reads:
    """Of the code and of all functions that are defined in it."""
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
    inner = [
        reads_of(each) for each in code.co_consts if isinstance(each, types.CodeType)
    ]
    mentioned = names["global"] | names["attribute"]
    strings = frozenset[str]()
    if mentioned & _NAMED_LOOKUPS or names["import"]:
        words = [w for w in _words(code.co_consts) if _is_name(w)]
        strings = frozenset([*words, *(part for w in words for part in w.split("."))])
    return Reads(
        frozenset(names["global"]).union(*(each.globals for each in inner)),
        frozenset(names["attribute"]).union(*(each.attributes for each in inner)),
        frozenset(chains).union(*(each.chains for each in inner)),
        frozenset(names["import"]).union(*(each.imports for each in inner)),
        strings.union(*(each.strings for each in inner)),
        bool(mentioned & _WHOLE_LOOKUPS)
        or _has_computed_name(instructions)
        or any(step.opname == "MATCH_CLASS" for step in instructions)
        or any(each.computes_names for each in inner),
    )


def _is_name(word: str) -> bool:
    """Whether it may be a name, or several with dots between them."""
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
    """Whether `getattr` or `hasattr` is called with a name that is not a constant."""
    for place, step in enumerate(instructions):
        looks_up = step.opname == "LOAD_GLOBAL" and step.argval in _LOOKUPS
        if looks_up and not _is_constant_lookup(instructions[place + 1 :]):
            return True
    return False


def _is_constant_lookup(rest: list[dis.Instruction]) -> bool:
    """Whether the second argument of a call, which begins here, is a constant."""
    depth, constant = 0, False
    for step in rest:
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return False
        if step.opname in ("KW_NAMES", *_TRANSPARENT):
            continue
        before, depth = depth, depth + dis.stack_effect(step.opcode, step.arg)
        if depth <= 0 and step.opname.startswith(("PRECALL", "CALL")):
            return constant
        if before == 1 and depth == 2:  # the second argument begins
            constant = step.opname == "LOAD_CONST"
        elif depth == 2 and before != 1:  # it is computed from several parts
            constant = constant and before == 2
    return False


class Execution:
    """What has run in this thread while it was entered, and in others added to it."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}  # with their globals
        self.names: set[str] = set()  # given to `__getattr__` and the like
        self.stops: list[Stop] = []
        self._arguments: dict[int, _ObjectReference] = {}
        self._looked_up: dict[int, _ObjectReference] = {}
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._owners: dict[types.CodeType, str] = {}
        self._forgotten: dict[tuple[int, str | None], Any] = {}
        self._muted = 0

    # -- watching ------------------------------------------------------------------

    def add(self, other: Execution) -> bool:
        """Takes over what another one has seen; whether code is new to this one."""
        known = len(self.codes) + len(self.names)
        self.codes |= other.codes
        self.names |= other.names
        for mine, theirs in (
            (self._arguments, other._arguments),
            (self._looked_up, other._looked_up),
        ):
            mine.update(theirs)
            for number in [n for n, held in mine.items() if held.is_alone()]:
                del mine[number]
        return len(self.codes) + len(self.names) > known

    def __enter__(self) -> None:
        for callback in gc.callbacks:  # they run at any time, and not for the step
            if isinstance(callback, types.FunctionType | types.MethodType):
                self._owners[callback.__code__] = "sink"
        sys.setprofile(self._note)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        owner = self._owners.get(frame.f_code)
        if owner is None:
            owner = self._owners[frame.f_code] = owner_of(frame.f_code)
        if owner == "sink":
            self._muted += {"call": 1, "return": -1}.get(event, 0)
        elif self._muted or owner == "internal":
            return
        elif event == "c_call":
            self._note_call_of_c(frame, owner, argument)
        elif event == "call":
            self._note_call(frame, owner)
        elif event == "return" and reads_of(frame.f_code).computes_names:
            self._note_lookups(frame, owner)

    def _note_call(self, frame: types.FrameType, owner: str) -> None:
        code = frame.f_code
        self.codes.setdefault(code, frame.f_globals)
        if owner == "torch":
            return
        values = list(frame.f_locals.values())
        for value in values:
            if not isinstance_of(value, ATOMS) and _has_attributes(type(value)):
                self._arguments.setdefault(id(value), _ObjectReference(value))
        if reads_of(code).computes_names or code.co_name.startswith("__getattr"):
            self.names.update(v for v in values if type(v) is str and v.isidentifier())

    def _note_call_of_c(self, frame: types.FrameType, owner: str, called: Any) -> None:
        if owner == "torch":
            return
        if (why := _why_impure(called, owner)) and len(self.stops) < 20:
            code = frame.f_code
            where = code.co_filename, frame.f_lineno, code.co_qualname
            self.stops.append(Stop("python", why, None, *where))
        if reads_of(frame.f_code).computes_names:
            self._note_lookups(frame, owner)

    def _note_lookups(self, frame: types.FrameType, owner: str) -> None:
        """Notes every object that the code could look attributes up in."""
        if owner == "torch":
            return
        reads, found = reads_of(frame.f_code), dict[int, Any]()
        names = reads.attributes | reads.strings
        values = list(frame.f_locals.values())
        if owner != "standard":  # which looks into its arguments
            values += map(frame.f_globals.get, reads.globals)
        for _ in range(_DEPTH):
            values = [each for each in values if id(each) not in found]
            found |= {id(each): each for each in values}
            values = [p for each in values for p in _parts(each, names)]
        for number, each in found.items():
            if isinstance_of(each, ATOMS):
                continue
            if _has_attributes(type(each)) or isinstance_of(each, _NAMESPACES):
                self._looked_up.setdefault(number, _ObjectReference(each))

    # -- what was seen -------------------------------------------------------------

    def is_looked_up(self, value: Any) -> bool:
        """Whether any attribute of an object may have been read."""
        held = self._looked_up.get(id(value))
        return held is not None and held.get() is value

    @property
    def asked_abstract_classes(self) -> bool:
        return not _ABSTRACT.isdisjoint(self.codes)

    def forget(self, owner: Any, name: str | None) -> None:
        """A place of torch or the standard library, which is not watched again."""
        self._forgotten[id(owner), name] = owner

    def is_forgotten(self, owner: int, name: str | None) -> bool:
        """By the id of the owner, which is not used again."""
        return (owner, name) in self._forgotten

    def arguments(self) -> Iterator[Any]:
        """The objects that functions were called with and that are still there."""
        for held in self._arguments.values():
            if (value := held.get()) is not None:
                yield value

    def functions_of(
        self, codes: Iterable[types.CodeType]
    ) -> Iterator[types.FunctionType]:
        """All functions with this code that there are."""
        missing = [code for code in codes if code not in self._functions]
        if missing:
            self._functions |= {code: [] for code in missing}
            for each in gc.get_referrers(*missing):
                if type(each) is types.FunctionType and each.__code__ in missing:
                    self._functions[each.__code__].append(each)
        for code in codes:
            yield from self._functions[code]


_ABSTRACT = frozenset(
    {abc.ABCMeta.__instancecheck__.__code__, abc.ABCMeta.__subclasscheck__.__code__}
)


class _ObjectReference:
    """An object, by a weak reference where it can have one."""

    __slots__ = ("_reference", "_value")

    def __init__(self, value: Any) -> None:
        self._reference: weakref.ref[Any] | None
        try:
            self._reference, self._value = weakref.ref(value), None
        except TypeError:
            self._reference, self._value = None, value

    def get(self) -> Any:
        """None if it is gone."""
        return self._value if self._reference is None else self._reference()

    def is_alone(self) -> bool:
        """Whether nobody else holds the object: it was made in the call."""
        if self._reference is not None:
            return self._reference() is None
        return sys.getrefcount(self._value) <= 2  # this, and the argument


def isinstance_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """`isinstance` that does not ask the object, which may answer by its own code."""
    return issubclass(type(value), kinds)


def _has_attributes(kind: type) -> bool:
    if issubclass(kind, Tensor | types.ModuleType | types.FunctionType | type):
        return False
    return bool(kind.__flags__ & _HEAP_TYPE) or kind is types.SimpleNamespace


_HEAP_TYPE = 1 << 9
_NAMESPACES = (type, types.ModuleType)


def _parts(value: Any, names: Iterable[str]) -> list[Any]:
    """Parts of a container, and attributes of an object by these names."""
    if isinstance_of(value, (list, tuple, set, frozenset)):
        return list(value) if len(value) < 1000 else []
    if isinstance_of(value, (dict,)):
        return list(dict.values(value))
    if isinstance_of(value, ATOMS):
        return []
    try:
        held = object.__getattribute__(value, "__dict__")
        return [held[name] for name in names if name in held]
    except (AttributeError, TypeError):
        return []


@functools.lru_cache(maxsize=16384)
def owner_of(code: types.CodeType) -> str:
    """user, library, torch or standard; `internal` where code is not followed."""
    file = code.co_filename.replace("\\", "/")
    if file.startswith(_IMPORTS):
        return "sink"
    owner = whose(code.co_filename)
    if owner == "standard":
        return "sink" if any(name in file for name in _SINKS) else owner
    if owner == "generated":
        return "standard" if file.startswith("<frozen") else "user"
    if owner == "torch":
        return "internal" if "/_" in file.rpartition("-packages/")[2] else owner
    if owner == "torchproof":
        # The eager recorder's own helpers are no code of the step.
        in_recorder = file.endswith("/cudagraph/eager_recorder.py")
        is_helper = in_recorder and code.co_name != "__torch_dispatch__"
        return "sink" if is_helper else "internal"
    return owner


def _why_impure(called: Any, caller: str) -> str | None:
    """Why a C function may answer otherwise the next time; None if it does not."""
    bound = getattr(called, "__self__", None)
    name = getattr(called, "__name__", "")
    if bound is None or isinstance(bound, types.ModuleType):
        module = getattr(called, "__module__", None) or getattr(bound, "__name__", "")
    else:
        module = _definer_of(bound, name).__module__
    top = str(module).partition(".")[0]
    if top not in sys.stdlib_module_names and top not in sys.builtin_module_names:
        return None
    if name in _HARMLESS_NAMES or (top in _PURE and name not in _IMPURE_NAMES):
        return None
    if top == "sys" and caller == "standard":  # to limit a loop, say
        return None
    return (
        f"the step calls {top}.{name}, which may answer otherwise at every call: call"
        " it outside of the step"
    )


def _definer_of(bound: Any, name: str) -> type:
    """The class that has the method of an object or of a class."""
    kinds = type(bound).__mro__
    if issubclass(type(bound), type):
        kinds = (*type.__dict__["__mro__"].__get__(bound), *kinds)
    return next((kind for kind in kinds if name in kind.__dict__), type(bound))
