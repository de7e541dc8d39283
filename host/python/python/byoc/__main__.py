"""The command `byoc`."""

import os
import sys

if not __package__:
    # Started by its path: the package's own folder is no place to import from.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> None:
    """Runs the command line, and ends the process with its exit code."""
    import signal

    from byoc import _byoc, _place

    _place.find_onednn()
    # The command line has its own handling of Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_byoc.main(_place.command(), sys.argv[1:], _place.FOLDER))


if __name__ == "__main__":
    main()
