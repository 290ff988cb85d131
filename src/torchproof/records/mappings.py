"""The mappings that may hold anything, by what they are; all others are records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]  # of a file or message, in a format of its own
Keywords = Mapping[str, Any]  # of a call of the user's function or of torch's
Namespace = dict[str, Any]  # a module's globals, a frame's variables, attributes
TorchConfig = Mapping[str, Any]  # values of a configuration of torch by their names
