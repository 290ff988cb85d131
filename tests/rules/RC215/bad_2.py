"""A class made at run time: every instance has a type of its own."""
import torch


def config(width):
    return type("Config", (), {"width": width})()


def project(x, settings):
    return x * settings.width


def make():
    return project, [(torch.randn(4), config(2.0)) for _ in range(4)]


EXPECT = [{"code": "RC215", "kind": "recompile", "line": "x * settings.width", "fix": ["class", "once", "outside", "reuse", "type"]}]
