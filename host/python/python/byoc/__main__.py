"""The command `byoc`."""

import os
import sys

if not __package__:
    # If this file is started by its path, Python searches the package directory itself, instead of its parent.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> None:
    """Runs the command line, and exits with its exit code."""
    import signal

    from byoc import _byoc, _place

    _place.find_onednn()
    # The command line handles Ctrl-C itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_byoc.main(_place.command(), sys.argv[1:], _place.FOLDER))


if __name__ == "__main__":
    main()
