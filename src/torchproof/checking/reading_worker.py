"""Reads files for another process: `python -m torchproof.checking.reading_worker`."""

from __future__ import annotations

import pickle
from pathlib import Path

from torchproof.checking.suspicions import read_apart
from torchproof.process import Channel, hold, packed


def main() -> None:
    hold()
    channel = Channel.to_parent()
    for files in channel.receive()["parts"]:
        reading = read_apart(map(Path, files))
        channel.send({"reading": packed(pickle.dumps(reading))})


if __name__ == "__main__":
    main()
