"""Places of files: this package, its command, and oneDNN where pip puts it."""

from __future__ import annotations

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def command() -> list[str]:
    """Returns the words that start the command line with this interpreter."""
    return [sys.executable or "", os.path.join(FOLDER, "__main__.py")]


def find_onednn() -> None:
    """Sets BYOC_DNNL_LIB to the library of the distribution onednn-cpu-gomp, unless it is set."""
    if os.environ.get("BYOC_DNNL_LIB"):
        return
    name = "libdnnl.so.3"
    beside = os.path.join(sys.prefix, "lib", name)
    if os.path.isfile(beside):
        os.environ["BYOC_DNNL_LIB"] = beside
        return
    from importlib import metadata

    try:
        files = metadata.distribution("onednn-cpu-gomp").files or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == name and os.path.isfile(file.locate()):
            os.environ["BYOC_DNNL_LIB"] = os.path.realpath(file.locate())
            return
