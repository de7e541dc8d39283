"""Locations of files: this package, its command, and the oneDNN library installed by pip."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

FOLDER = os.path.dirname(os.path.abspath(__file__))


def command() -> list[str]:
    """Returns the command that starts the command line with this interpreter."""
    return [sys.executable or "", os.path.join(FOLDER, "__main__.py")]


_LIBRARY = "libdnnl.so.3"


def find_onednn() -> None:
    """Sets BYOC_DNNL_LIB to the library of the distribution onednn-cpu-gomp, unless it is set.

    The library is a data file of its wheel: pip installs it into `lib` of the environment, of the user base directory
    (--user) or of the prefix (--prefix), and uv into `lib` of the target (--target). With --target, pip omits it.
    """
    if os.environ.get("BYOC_DNNL_LIB"):
        return
    site = sys.modules.get("site")
    user = getattr(site, "USER_BASE", None) if getattr(site, "ENABLE_USER_SITE", False) else None
    folders = [os.path.join(base, "lib") for base in (sys.prefix, user) if base]
    found = next((path for path in _libraries(folders) if os.path.isfile(path)), None)
    if found is None:
        found = next((path for path in _libraries(_recorded()) if os.path.isfile(path)), None)
    if found is not None:
        os.environ["BYOC_DNNL_LIB"] = os.path.realpath(found)


def _libraries(folders: Iterable[str]) -> Iterable[str]:
    return (os.path.join(folder, _LIBRARY) for folder in folders)


def _recorded() -> Iterator[str]:
    """Yields the directories in which the distribution may have its library."""
    from importlib import metadata

    for found in metadata.distributions(name="onednn-cpu-gomp"):
        for file in found.files or []:
            folder = os.path.dirname(os.path.normpath(os.fspath(found.locate_file(file))))
            # With --target, pip records a path outside the target, where an unrelated file may exist.
            if file.name == _LIBRARY and os.path.basename(folder) == "lib":
                yield folder
        yield os.path.join(os.path.normpath(os.fspath(found.locate_file(""))), "lib")


def missing_onednn() -> str | None:
    """Returns a hint if the distribution is installed without its library, as with pip's --target; otherwise None."""
    if os.environ.get("BYOC_DNNL_LIB"):
        return None
    from importlib import metadata

    if next(iter(metadata.distributions(name="onednn-cpu-gomp")), None) is None:
        return None
    return (
        f"the package onednn-cpu-gomp is installed without its library {_LIBRARY}, which pip omits with --target; "
        "install the package into an environment or with --prefix or --user, or set BYOC_DNNL_LIB to the library"
    )
