"""`python -m byoc.tvm SCRIPT [ARGUMENTS]`: runs a script that was written for TVM."""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    """Runs the script of the command line."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m byoc.tvm SCRIPT [ARGUMENTS]\n       python -m byoc.tvm -m MODULE [ARGUMENTS]")
        sys.exit(0 if arguments else 2)
    from . import install

    install()
    if arguments[0] == "-m" and len(arguments) > 1:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not os.path.isfile(arguments[0]):
        sys.exit(f"byoc.tvm: expected a script, found no file {arguments[0]}")
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
