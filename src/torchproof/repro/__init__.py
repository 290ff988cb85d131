"""Repro packs: a failure of a target as one archive that anyone can run."""
