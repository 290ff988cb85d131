"""Recordings on the CPU, from the tests of graphs, are at hand here as well."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "cudagraph"))
