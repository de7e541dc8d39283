"""Descriptions of inputs, outputs and models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._types import render


class NodeArg:
    """Input or output of a model."""

    __slots__ = ("_has_rank", "name", "shape", "type")

    def __init__(self, name: str, type: str, shape: list[int | str | None], _has_rank: bool = True) -> None:  # noqa: A002
        """_has_rank: False if the model does not declare the rank; the shape is then empty."""
        self.name, self.type, self.shape, self._has_rank = name, type, shape, _has_rank

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class ModelMetadata:
    """Metadata of a model."""

    __slots__ = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.producer_name: str = metadata["producer_name"]
        self.graph_name: str = metadata["graph_name"]
        self.domain: str = metadata["domain"]
        self.description: str = metadata["doc_string"]
        self.graph_description: str = metadata["graph_doc_string"]
        self.version: int = metadata["model_version"]
        self.custom_metadata_map: dict[str, str] = metadata["metadata_props"]


def node_arg(port: Any, sizes: Mapping[str, int], known: Sequence[Any] | None) -> NodeArg:
    """Describes a declared value, with the sizes fixed by the options and the sizes inferred by the compilation."""
    name, declared, dims = port
    has_rank = dims is not None
    if dims is None:
        dims = [dim if isinstance(dim, int) or str(dim).isidentifier() else None for dim in known or ()]
    elif known is not None and len(known) == len(dims):
        dims = [size if dim is None and isinstance(size, int) else dim for dim, size in zip(dims, known)]
    return NodeArg(name, render(declared), [sizes.get(dim, dim) for dim in dims], has_rank)
