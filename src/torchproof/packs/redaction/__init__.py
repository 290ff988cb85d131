"""What tells who made a pack, where, and with which secrets, taken out of any text."""

from torchproof.packs.redaction.machine import Known
from torchproof.packs.redaction.redactor import Redactor

__all__ = ["Known", "Redactor"]
