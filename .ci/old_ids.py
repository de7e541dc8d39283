"""Rewrites `cargo metadata` on standard input for tools from before cargo 1.77, which changed how packages are named.

`path+file:///x#name@1.0.0` becomes `name 1.0.0 (path+file:///x)`.
"""

import json
import sys

metadata = json.load(sys.stdin)
names = {p["id"]: f'{p["name"]} {p["version"]} ({p["id"].split("#")[0]})' for p in metadata["packages"]}


def renamed(value):
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [renamed(item) for item in value]
    if isinstance(value, dict):
        return {key: renamed(item) for key, item in value.items()}
    return value


json.dump(renamed(metadata), sys.stdout)
