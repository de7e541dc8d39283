"""Restricts Ray to the loopback interface. Must be imported before Ray."""

import os

# With multi-node clusters disabled, as by default on Windows and macOS, Ray does not listen on an external address.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
