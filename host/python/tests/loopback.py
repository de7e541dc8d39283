"""Importing this module keeps Ray on the loopback interface. It has to come before Ray."""

import os

# Ray takes an address that other machines reach, unless its clusters are off, as they are by default on other systems.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
