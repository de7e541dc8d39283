"""Runs a program with byoc in the place of ONNX Runtime:

    python -m byoc.onnxruntime [--backend NAMES] SCRIPT [ARGUMENTS]
    python -m byoc.onnxruntime [--backend NAMES] -m MODULE [ARGUMENTS]
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from ._install import install


def main() -> None:
    """Runs the program that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m byoc.onnxruntime",
        description="Run a program with byoc in the place of ONNX Runtime",
        allow_abbrev=False,
    )
    parser.add_argument("--backend", metavar="NAMES", help="Backends of the sessions in priority order [default: none]")
    parser.add_argument("-m", dest="is_module", action="store_true", help="Run a module instead of a script")
    parser.add_argument("program", help="Script, or module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="Arguments of the program")
    chosen = parser.parse_args()
    install(backend=chosen.backend)
    sys.argv = [chosen.program, *chosen.arguments]
    if chosen.is_module:
        runpy.run_module(chosen.program, run_name="__main__", alter_sys=True)
        return
    # As for `python SCRIPT`, the first entry of the search path is the directory of the script.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.abspath(chosen.program))
    runpy.run_path(chosen.program, run_name="__main__")


if __name__ == "__main__":
    main()
