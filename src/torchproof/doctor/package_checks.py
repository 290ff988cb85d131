"""Python, torchproof, and the packages that it uses: required ones and extras."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import NamedTuple

from torchproof import __version__
from torchproof.doctor.table import Problem, failed, tried
from torchproof.records import MachineCheck

_OLDEST, _NEWEST = (3, 11), (3, 13)  # the Pythons that the tests ran on
_FOR = {
    "cryptography": "signed packs",
    "detect-secrets": "tokens of vendors are found in repro packs",
    "jinja2": "HTML reports",
    "libcst": "fix",
    "numpy": "torch, and every verb that measures",
    "psutil": "free and used memory, in every verb that measures",
    "ray": "tune on a cluster",
    "rich": "progress on a terminal",
}


def versions() -> Iterator[MachineCheck]:
    """Python and torchproof, which everything else depends on."""
    supported = "{}.{} to {}.{}".format(*_OLDEST, *_NEWEST)
    yield from tried("python", _python, supported=supported)
    yield MachineCheck("versions", "torchproof", "ok", __version__)


def _python() -> str:
    value = f"{platform.python_version()}, {platform.platform()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise Problem(value, "gil")
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        raise Problem(value)
    return value


class Requirement(NamedTuple):
    """A package that torchproof names, and the extra that it belongs to."""

    name: str
    least: str
    extra: str

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Of `ray[client]>=2.51; extra == 'ray'`."""
        name = re.split(r"[\s\[<>=!~;(]", text, maxsplit=1)[0]
        least = re.search(r">=\s*([\d.]+)", text.partition(";")[0])
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)", text)
        return cls(name, least[1] if least else "", extra[1] if extra else "")


def requirements() -> list[Requirement] | None:
    """Without torch, which has checks of its own, and without those of developers."""
    try:
        texts = metadata.requires("torchproof") or []
    except metadata.PackageNotFoundError:
        return None
    found = map(Requirement.parse, texts)
    return [each for each in found if each.name != "torch" and each.extra != "dev"]


def installed(*, extras: bool) -> Iterator[str]:
    """The packages to import: those of which some version is installed."""
    for each in requirements() or ():
        if each.extra and not extras:
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(each.name)
            yield each.name


def module_of(package: str) -> str:
    return package.replace("-", "_")


def checks(errors: Mapping[str, str]) -> Iterator[MachineCheck]:
    """Each package once, with the error of those whose import failed."""
    needed = requirements()
    if needed is None:
        yield failed("torchproof", "it is not installed, but found on the path")
        return
    yield from (check(each, errors.get(each.name, "")) for each in needed)


def check(requirement: Requirement, error: str = "") -> MachineCheck:
    """`error` is what its import raised."""
    name, _, extra = requirement
    purpose = _FOR.get(name, f"the extra `{extra}`" if extra else "torchproof")
    words = {**requirement._asdict(), "purpose": purpose}
    (found,) = tried("package", _package, requirement, error, **words)
    return found


def _package(requirement: Requirement, error: str) -> str:
    name, least, extra = requirement
    optional = bool(extra)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        way = "extra" if extra else ""
        raise Problem("not installed", way, optional=optional) from None
    if error:
        raise Problem(f"{version}: {error}", "broken", optional=optional)
    if least and _numbers(version) < _numbers(least):
        raise Problem(f"{version}, older than {least}", "old", optional=optional)
    return version


def _numbers(version: str) -> tuple[int, ...]:
    """`1.10.0rc1` as (1, 10, 0), to compare."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()
