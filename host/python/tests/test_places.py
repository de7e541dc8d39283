"""Locations where pip installs oneDNN: an environment, the user base directory, a prefix, a target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, site, sys
sys.prefix = "/nowhere"
# A virtual environment has no user base directory.
site.ENABLE_USER_SITE = "PYTHONUSERBASE" in os.environ
from byoc import _place
_place.find_onednn()
print(os.environ.get("BYOC_DNNL_LIB"))
print(_place.missing_onednn())
"""


def record(site: Path, library: str) -> None:
    """Writes the metadata of the distribution as pip does, with the recorded path of its library."""
    info = site / "onednn_cpu_gomp-2023.2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onednn-cpu-gomp\nVersion: 2023.2.0\n")
    (info / "RECORD").write_text(f"{library},sha256=x,4\nonednn_cpu_gomp-2023.2.0.dist-info/METADATA,,\n")


def found(site: Path, **variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "BYOC_DNNL_LIB"}
    environment["PYTHONPATH"] = os.pathsep.join([environment.get("PYTHONPATH", ""), str(site)])
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**environment, **variables}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_environment_and_prefix(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    record(site, "../../libdnnl.so.3")
    library = tmp_path / "lib" / "libdnnl.so.3"
    library.write_bytes(b"lib\n")
    assert found(site) == [str(library), "None"]


def test_user(tmp_path: Path) -> None:
    base = tmp_path / "user"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    record(base / "lib" / version / "site-packages", "../../libdnnl.so.3")
    library = base / "lib" / "libdnnl.so.3"
    library.write_bytes(b"lib\n")
    assert found(tmp_path / "other", PYTHONUSERBASE=str(base)) == [str(library), "None"]


def test_target_with_libraries(tmp_path: Path) -> None:
    target = tmp_path / "target"
    record(target, "lib/libdnnl.so.3")
    (target / "lib").mkdir()
    (target / "lib" / "libdnnl.so.3").write_bytes(b"lib\n")
    assert found(target) == [str(target / "lib" / "libdnnl.so.3"), "None"]


@pytest.mark.parametrize("planted", [False, True])
def test_target_without_libraries(tmp_path: Path, planted: bool) -> None:
    """Tests pip's --target: the recorded path is outside the target, and the file there is not the library."""
    target = tmp_path / "target"
    record(target, "../libdnnl.so.3")
    if planted:
        (tmp_path / "libdnnl.so.3").write_bytes(b"bad\n")
    path, advice = found(target)
    assert path == "None" and "--target" in advice and "BYOC_DNNL_LIB" in advice


def test_the_variable_wins(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site"
    record(site, "../libdnnl.so.3")
    (tmp_path / "lib" / "libdnnl.so.3").write_bytes(b"lib\n")
    assert found(site, BYOC_DNNL_LIB="/my/libdnnl.so") == ["/my/libdnnl.so", "None"]


def test_nothing_installed(tmp_path: Path) -> None:
    path, advice = found(tmp_path)
    if advice != "None":
        pytest.skip("the distribution is installed")
    assert path == "None"


def test_compilation_tells_what_is_missing(tmp_path: Path) -> None:
    from conftest import DIGITS

    target = tmp_path / "target"
    record(target, "../libdnnl.so.3")
    code = f"""
import sys, warnings
sys.prefix = "/nowhere"
import byoc
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = byoc.compile({os.fspath(DIGITS)!r}, backend="dnnl", dims={{"batch": 1}})
print(model.explain().totals["in_regions"], any("--target" in str(one.message) for one in caught))
"""
    environment = {name: value for name, value in os.environ.items() if name != "BYOC_DNNL_LIB"}
    environment["PYTHONPATH"] = os.pathsep.join([environment.get("PYTHONPATH", ""), str(target)])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0", "True"], done.stdout + done.stderr
