"""Replica of a Ray Serve deployment. Importing this module requires Ray Serve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .._errors import Error, InputError
from .._session import Session
from . import _oip
from ._artifact import Artifact
from ._calls import run_calls
from ._require import worker_threads
from ._rows import Rows, keeps_rows_apart

Arrays = Mapping[str, np.ndarray]


class Replica:
    """Model in a replica process of a deployment created by `byoc.ray.deployment`."""

    def __init__(self, artifact: Artifact, name: str, max_batch_size: int, batch_wait_timeout_s: float) -> None:
        self.name = name
        self.session = Session(threads=worker_threads())
        self.rows = Rows(artifact.load(self.session))
        self.max_rows = max_batch_size
        joins = max_batch_size > 1 and self.rows.size is None and keeps_rows_apart(self.rows)
        self._batched.set_max_batch_size(max_batch_size if joins else 1)
        self._batched.set_batch_wait_timeout_s(batch_wait_timeout_s if joins else 0)

    async def __call__(self, request: Any) -> Any:
        """Runs the model on an array, on arrays by name, or on an HTTP request."""
        if isinstance(request, Request):
            return await self._answer(request)
        if not isinstance(request, Mapping):
            if len(self.rows.inputs) != 1:
                names = ", ".join(f'"{name}"' for name in self.rows.inputs)
                raise InputError(f"expected arrays by name ({names}), found {type(request).__name__}", "E0603")
            request = {next(iter(self.rows.inputs)): request}
        return await self._run({name: self.rows.fitted(name, value) for name, value in request.items()})

    async def _run(self, feeds: Arrays) -> dict[str, np.ndarray]:
        result = await self._batched(feeds)
        if isinstance(result, Exception):
            raise result
        return result

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def _batched(self, calls: list[Arrays]) -> list[Any]:
        """Runs a batch of calls. The result of a failed call is its exception, which leaves the others unaffected."""
        return await asyncio.to_thread(run_calls, self.rows, calls, self.max_rows)

    async def _answer(self, request: Request) -> Response:
        """Handles an HTTP request: GET returns the metadata, POST runs the model."""
        if request.method == "GET":
            return JSONResponse(_oip.metadata(self.name, self.rows.model))
        try:
            body = await request.body()
            call = _oip.parse(body, self.rows.inputs)
            results = await self._run(call.feeds)
            return Response(_oip.response(self.name, call, results), media_type="application/json")
        except InputError as error:
            return _failure(400, error)
        except Error as error:
            return _failure(500, error)


def _failure(status: int, error: Error) -> Response:
    body = json.dumps({"error": error.message, "code": error.code})
    return Response(body, status_code=status, media_type="application/json")
