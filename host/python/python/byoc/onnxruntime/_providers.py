"""Selection of execution providers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from ._runtime import CPU, get_all_providers, get_available_providers


def normalize(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Returns the selected providers with their options; the CPU provider is always last."""
    if not providers:
        return {CPU: {}}
    if provider_options is not None and len(provider_options) != len(providers):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    chosen: dict[str, dict[str, str]] = {}

    def add(name: str, options: Mapping[Any, Any]) -> None:
        if name in chosen:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
            return
        if name not in get_available_providers():
            available = ", ".join(get_available_providers())
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names.Available providers: '{available}'",
                stacklevel=5,
            )
            if name not in get_all_providers():
                raise RuntimeError(f"Unknown Provider Type: {name}")
            return
        chosen[name] = {str(key): str(value) for key, value in options.items()}

    for index, provider in enumerate(providers):
        given = provider_options[index] if provider_options is not None else {}
        if isinstance(provider, str):
            add(provider, given)
        elif (
            isinstance(provider, tuple)
            and len(provider) == 2
            and isinstance(provider[0], str)
            and isinstance(provider[1], dict)
        ):
            add(provider[0], provider[1])
        else:
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
    chosen.setdefault(CPU, {})
    return chosen
