"""Selection of execution providers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ._runtime import CPU, get_all_providers, get_available_providers


def check_and_normalize_provider_args(
    providers: Any, provider_options: Any, available_provider_names: Sequence[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the names of the providers and their options as strings, each provider once. Providers that are not
    available are named in a warning."""
    chosen: dict[str, dict[str, str]] = {}

    def add(name: str, options: Mapping[Any, Any]) -> None:
        if name not in available_provider_names:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names.Available providers: "
                f"'{', '.join(available_provider_names)}'",
                stacklevel=6,
            )
        if name in chosen:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=6)
        else:
            chosen[name] = {str(key): str(value) for key, value in options.items()}

    if providers is None:
        return [], []
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(provider_options) != len(providers):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(options, dict) for options in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        if not all(isinstance(provider, str) for provider in providers):
            raise ValueError("When using 'provider_options', 'providers' values must be names.")
    for index, provider in enumerate(providers):
        if isinstance(provider, str):
            add(provider, provider_options[index] if provider_options is not None else {})
        elif (
            isinstance(provider, tuple)
            and len(provider) == 2
            and isinstance(provider[0], str)
            and isinstance(provider[1], dict)
        ):
            add(provider[0], provider[1])
        else:
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
    return list(chosen), list(chosen.values())


def normalize(providers: Any, provider_options: Any) -> dict[str, dict[str, str]]:
    """Returns the selected providers with their options; the CPU provider is always last."""
    if not providers:
        return {CPU: {}}
    names, options = check_and_normalize_provider_args(providers, provider_options, get_available_providers())
    unknown = [name for name in names if name not in get_all_providers()]
    if unknown:
        raise RuntimeError(f"Unknown Provider Type: {unknown[0]}")
    chosen = {name: each for name, each in zip(names, options) if name in get_available_providers()}
    return {**chosen, CPU: chosen.pop(CPU, {})}
