"""Drafts made of a target's own source, and how they are made small and nameless."""

from __future__ import annotations
