"""Serves a model from a deploy pack, with its health and its metrics.

torchproof pack model.py:make --for deploy -o served-pack
PACK=served-pack uvicorn app:app
"""

from __future__ import annotations

import os
import threading
import time
from typing import Annotated, Any

import prometheus_client
import torch
from fastapi import FastAPI, Response
from model import WIDTH, make
from pydantic import Field
from torch import nn

import torchproof
from torchproof.integrations.health import health
from torchproof.integrations.prometheus import StatusCollector

Row = Annotated[list[float], Field(min_length=WIDTH, max_length=WIDTH)]


def start() -> nn.Module:
    """The model: compiled from its pack, else eager until it is compiled."""
    model, calls = make()
    if pack := os.environ.get("PACK"):
        model = torchproof.load(pack, model, wait=False)
    else:
        model = torchproof.compile(model, wait=False)
    warm_up(model, calls[0])  # begins to compile what the pack does not have
    threading.Thread(target=finish, args=(model, calls[0]), daemon=True).start()
    return model


def warm_up(model: nn.Module, call: tuple[Any, ...]) -> None:
    with torch.no_grad():
        model(*call)


def finish(model: nn.Module, call: tuple[Any, ...]) -> None:
    """Calls the model until it is compiled: its code is used when a call follows it.

    A service that gets no request before it is ready would otherwise never be.
    """
    while health(model)["state"] == "compiling":
        time.sleep(1)
        warm_up(model, call)


model = start()
prometheus_client.REGISTRY.register(StatusCollector(classifier=model))
app = FastAPI()


@app.post("/predict")
def predict(row: Row) -> list[float]:
    with torch.no_grad():
        scores: list[float] = model(torch.tensor([row]))[0].tolist()
    return scores


# `async`, because FastAPI runs other routes in its threads for requests: a health probe
# must not wait until one of them is free.
@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return health(model)


@app.get("/metrics")
async def metrics() -> Response:
    text = prometheus_client.generate_latest()
    return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)
