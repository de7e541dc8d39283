"""Runs the quick starts of packages on ONNX Runtime and on byoc in its place: quickstarts.py WHEEL DIR [NAME..]

Each file in `quickstarts` names its packages in the first line (`# packages: ...`), and gets an environment of its own
below DIR, with ONNX Runtime and byoc. Results must be identical: texts and whole numbers exactly, other numbers within
a relative difference of 1e-3 of the largest in their list. The exit code is 1 if one is not, or if byoc takes more than
1.5 times as long, unless the second line (`# known: ...`) says why; or if one passes that has such a line.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

FOLDER = pathlib.Path(__file__).parent
LIMIT, SLOWEST = 1e-3, 1.5
TIMEOUT = 900


def header(file, key):
    lines = [line for line in file.read_text().splitlines()[:3] if line.startswith(f"# {key}: ")]
    return lines[0].partition(": ")[2] if lines else ""


def environment(folder, packages, wheel):
    """Returns the interpreter of an environment with the packages, and installs the wheel."""
    python, marker = folder / "bin" / "python", folder / "ready"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not marker.exists() or marker.read_text() != packages:
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([*pip, "onnxruntime", "onednn-cpu-gomp==2023.2.0", *packages.split()], check=True)
        marker.write_text(packages)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
    return python


def run(python, script, out, *words):
    command = [python, *words, FOLDER / "quickstart.py", script, out]
    variables = {**os.environ, "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd=out.parent, env=variables)
    except subprocess.TimeoutExpired:
        return f"no result after {TIMEOUT} s"
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return None if done.returncode == 0 else (lines or [f"exit code {done.returncode}"])[-1]


def difference(found, expected, place="result"):
    """Describes the first difference between two results; None if there is none."""
    one, other = numbers(found), numbers(expected)
    if one is not None and other is not None and one.shape == other.shape:
        if other.dtype.kind != "f":
            return None if (one == other).all() else f"{place}: other whole numbers"
        if not (np.isfinite(one) == np.isfinite(other)).all():
            return f"{place}: other elements are finite"
        finite = np.isfinite(other)
        scale = np.abs(other[finite]).max(initial=0) or 1
        worst = np.abs(one - other)[finite].max(initial=0) / scale
        return f"{place}: a relative difference of {worst:.1e}" if worst > LIMIT else None
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(found) != list(expected):
            return f"{place}: the keys {list(found)[:5]} instead of {list(expected)[:5]}"
        pairs = [(f"{place}.{key}", found[key], expected[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return f"{place}: {len(found)} elements instead of {len(expected)}"
        pairs = [(f"{place}[{index}]", *pair) for index, pair in enumerate(zip(found, expected))]
    else:
        return None if found == expected else f"{place}: {found!r:.80} instead of {expected!r:.80}"
    return next((text for where, one, other in pairs if (text := difference(one, other, where))), None)


def numbers(value):
    """Returns nested lists of numbers as an array; None for anything else."""
    if not isinstance(value, (list, int, float)) or value == []:
        return None
    try:
        array = np.array(value)
    except ValueError:
        return None
    return array if array.dtype.kind in "fi" else None


def main():
    wheel, folder, *names = sys.argv[1:]
    scripts = sorted((FOLDER / "quickstarts").glob("*.py"))
    problems, count, identical = [], 0, 0
    print(f"{'package':<26} {'ms':>9} {'ratio':>6}  verdict")
    for script in scripts:
        if names and script.stem not in names:
            continue
        count += 1
        known = header(script, "known")
        with tempfile.TemporaryDirectory() as place:
            outs = [pathlib.Path(place) / name for name in ("expected.json", "found.json")]
            milliseconds = ratio = float("nan")
            try:
                python = environment(pathlib.Path(folder).resolve() / script.stem, header(script, "packages"), wheel)
            except subprocess.CalledProcessError as error:
                text = f"cannot be installed: {error}"
            else:
                text = run(python, script, outs[0])
                text = f"ONNX Runtime: {text}" if text else None
            if text is None:
                expected = json.loads(outs[0].read_text())
                milliseconds = 1e3 * expected["time"]
                text = run(python, script, outs[1], "-m", "byoc.onnxruntime")
                text = f"error: {text}" if text else None
            if text is None:
                found = json.loads(outs[1].read_text())
                ratio = found["time"] / expected["time"]
                if (expected["runtime"].split()[0], found["runtime"]) != ("onnxruntime", "byoc"):
                    text = f"{found['runtime']} instead of byoc"
                else:
                    text = difference(found["result"], expected["result"])
        identical += text is None
        verdict = text or "identical"
        if text is None and ratio > SLOWEST:
            text = f"{ratio:.2f} times as long as ONNX Runtime"
        if (text is None) is bool(known):
            problems.append(f"{script.stem}: {text or 'passes, known: ' + known}")
        print(f"{script.stem:<26} {milliseconds:>9.2f} {ratio:>6.2f}  {verdict}", f"(known: {known})" if known else "",
              flush=True)  # fmt: skip
    print(f"{identical} of {count} identical")
    for line in problems:
        print(line)
    sys.exit(1 if problems else 0)


main()
