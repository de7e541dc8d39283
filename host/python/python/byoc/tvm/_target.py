"""Targets of compilation."""

from __future__ import annotations

from typing import Any

from .._errors import BackendError

_HOSTS = ("llvm", "c", "cpu")


class Target:
    """Target: the host, whose kernels are precompiled."""

    def __init__(self, target: Any = "llvm", host: Any = None) -> None:
        if isinstance(target, Target):
            target = target._text
        self._text = target.get("kind", "llvm") if isinstance(target, dict) else str(target)
        self.host = host

    @property
    def kind(self) -> Any:
        return type("Kind", (str,), {"name": property(str)})(self._text.partition(" ")[0])

    @property
    def keys(self) -> list[str]:
        return ["cpu"]

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: Any) -> None:
        """Leaves the target as it is."""

    def __str__(self) -> str:
        return self._text

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        return None


def check(target: Any) -> None:
    """Raises BackendError unless a target is the host."""
    targets = target.values() if isinstance(target, dict) else target if isinstance(target, (list, tuple)) else [target]
    for item in targets:
        kind = str(Target(item).kind)
        if kind not in _HOSTS:
            raise BackendError(
                f'expected the target "llvm" or "c", found "{kind}"',
                "E0403",
                f"a backend gets its part by partitioning: relay.op.contrib.partition_for_{kind}(mod, params), "
                "or MergeComposite, AnnotateTarget, MergeCompilerRegions, PartitionGraph; then build for llvm",
            )
