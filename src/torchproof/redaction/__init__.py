"""What tells who made a pack, where, and with which secrets, taken out of any text."""

from torchproof.redaction.machine import Known
from torchproof.redaction.redactor import Redactor

__all__ = ["Known", "Redactor"]
