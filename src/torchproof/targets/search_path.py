"""The folder that a target's imports are searched in first, as plain Python would.

Children start without the working directory on `sys.path`. `python file.py` searches
the folder of the file, and `python -m module` the working directory.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

# Standard modules that the child imports late, when a file of the program that has the
# same name would be found first.
_OWN_MODULES = frozenset(
    """
    __future__ ast atexit base64 bisect builtins collections
    concurrent contextlib contextvars copy copyreg ctypes dataclasses datetime
    difflib dis enum errno faulthandler fcntl functools gc getpass grp gzip
    hashlib heapq html
    importlib inspect io ipaddress itertools json keyword linecache logging math
    multiprocessing numbers operator os pathlib pickle pickletools pkgutil platform pwd
    queue random re resource runpy shlex shutil signal socket stat statistics struct
    subprocess sys sysconfig tarfile tempfile textwrap threading time tokenize tomllib
    traceback types typing unicodedata urllib uuid warnings weakref zipfile zlib
    """.split()  # noqa: SIM905
)


def search_first(folder: Path) -> None:
    """Puts a folder first on `sys.path`; torchproof keeps the standard modules."""
    if str(folder) in sys.path:
        return
    for name in _shadowed(folder) & _OWN_MODULES:
        importlib.import_module(name)
    sys.path.insert(0, str(folder))


def _shadowed(folder: Path) -> set[str]:
    """The names of files and folders that are also names of standard modules."""
    try:
        names = {entry.name.partition(".")[0] for entry in os.scandir(folder)}
    except OSError:
        return set()
    return names & sys.stdlib_module_names
