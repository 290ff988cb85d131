"""Ranks on this machine: their variables, a port to meet at, and who is to blame."""

from __future__ import annotations

import contextlib
import re
import socket

# How a rank fails if another one has ended.
_FOLLOWS = re.compile(
    r"another rank has ended|closed by peer|reset by peer|Connection refused"
    r"|Broken pipe|remote process exited|heartbeat|timed out|Timed out",
    re.I,
)


def follows_from_another(error: str) -> bool:
    """Whether the error of a rank says that another rank has failed before."""
    return bool(_FOLLOWS.search(error))


def rank_variables(rank: int, count: int, port: int) -> dict[str, str]:
    """The variables of a rank: as torch's launcher sets them, on one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }


def reserved_port() -> socket.socket:
    """A socket with a free port, which does not listen; raises `OSError`.

    While it is open, no other program gets the port, and the store of rank 0, which
    reuses addresses too, can listen there.
    """
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError):
            reserved = socket.socket(family, socket.SOCK_STREAM)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("", 0))
            return reserved
    raise OSError("no free port for the process group")
