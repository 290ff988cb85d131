"""Redacts text: replaces names, directories, hosts and secrets with placeholders."""

from torchproof.packs.redaction.machine import PrivateValues
from torchproof.packs.redaction.redactor import Redactor

__all__ = ["PrivateValues", "Redactor"]
