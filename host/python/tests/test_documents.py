"""Every Python example of the documents runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PAGES = [ROOT / "docs" / "python.md", ROOT / "host" / "python" / "README.md"]
EXAMPLES = [
    pytest.param(code, id=f"{page.parent.name}-{index}")
    for page in PAGES
    for index, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M))
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code: str, tmp_path: Path) -> None:
    if code.count("\n") == 1:
        pytest.skip("a line of another example")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4
