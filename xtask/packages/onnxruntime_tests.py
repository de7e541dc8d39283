"""Runs ONNX Runtime's own Python tests with byoc in its place: onnxruntime_tests.py DIR PYTHON [--bless] [NAME..]

The tests are those of ONNX Runtime 1.21, from the source package of Debian 13, which apt-get downloads with a
configuration of its own below DIR from the mirror that this machine uses. onnxruntime_tests.txt has the names of the
tests that pass with ONNX Runtime's package, which `--bless` writes; those that fail with byoc follow with the reason.
The exit code is 1 if another test fails, or if one of them passes.
"""

import glob
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree

FOLDER = pathlib.Path(__file__).parent
LIST = FOLDER / "onnxruntime_tests.txt"
SUITE, SOURCE = "trixie", "onnxruntime"
FILES = ("onnxruntime_test_*.py", "quantization", "contrib_ops")
TIMEOUT = 1800


def mirror():
    """Returns the address and the keyring of this machine's Debian mirror, from apt's own list of sources."""
    lines = pathlib.Path("/etc/os-release").read_text().splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line)
    suite = release.get("VERSION_CODENAME", "").strip('"')
    for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*"))]:
        text = pathlib.Path(path).read_text() if os.path.isfile(path) else ""
        for block in re.split(r"\n\s*\n", text):
            fields = dict(line.split(":", 1) for line in block.splitlines() if re.match(r"[A-Za-z-]+:", line))
            if suite in fields.get("Suites", "").split() and "main" in fields.get("Components", "").split():
                return fields["URIs"].split()[0], fields.get("Signed-By", "").strip()
        for line in text.splitlines():
            found = re.match(rf"deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+{re.escape(suite)}\s.*\bmain\b", line)
            if found:
                keyring = re.search(r"signed-by=([^\s\]]+)", line)
                return found.group(1), keyring.group(1) if keyring else ""
    raise SystemExit(f"expected a Debian mirror for {suite} in the sources of apt, found none")


def sources(folder):
    """Returns the folder with the tests and their data, downloaded if it is not there."""
    target = folder / "tests"
    if target.is_dir():
        return target
    apt = folder / "apt"
    for part in ("state/lists/partial", "cache/archives/partial", "download"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    address, keyring = mirror()
    signed = f" [signed-by={keyring}]" if keyring else ""
    (apt / "sources.list").write_text(f"deb-src{signed} {address} {SUITE} main\n")
    (apt / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{apt}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
        f'Dir::State "{apt}/state";\nDir::State::status "/dev/null";\nDir::Cache "{apt}/cache";\n'
        'APT::Sandbox::User "root";\n'
    )
    variables = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    for words in (["update"], ["source", "--download-only", "--tar-only", SOURCE]):
        subprocess.run(["apt-get", "--quiet", *words], check=True, cwd=apt / "download", env=variables)
    (archive,) = (apt / "download").glob(f"{SOURCE}_*.orig.tar.*")
    part = folder / "tests.part"
    with tarfile.open(archive) as opened:
        for member in opened:
            inner = pathlib.PurePosixPath(*pathlib.PurePosixPath(member.name).parts[1:])
            for start, name in (("onnxruntime/test/python", "."), ("onnxruntime/test/testdata", "testdata")):
                if member.isfile() and inner.is_relative_to(start):
                    to = part / name / inner.relative_to(start)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    to.write_bytes(opened.extractfile(member).read())
    part.rename(target)
    return target


def outcomes(python, tests, report, *words):
    """Runs the tests, and returns the outcome of each: "passed", or the first line of the failure."""
    files = sorted(path.relative_to(tests) for pattern in FILES for path in tests.glob(pattern))
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--junit-xml={report}"]
    subprocess.run(
        [python, *words, "-m", "pytest", *options, *files], cwd=tests, timeout=TIMEOUT, stdout=subprocess.DEVNULL
    )
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        text = f"{bad[0].tag}: {(bad[0].get('message') or '').splitlines()[0][:200]}" if bad else "passed"
        found[f"{case.get('classname')}.{case.get('name')}"] = text
    return found


def main():
    folder, python, *names = sys.argv[1:]
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tests = sources(folder)
    lines = [line for line in LIST.read_text().splitlines() if line] if LIST.exists() else []
    known = dict((line.split(" ", 1) + [""])[:2] for line in lines)
    if names == ["--bless"]:
        passing = [name for name, text in outcomes(python, tests, folder / "expected.xml").items() if text == "passed"]
        LIST.write_text("".join(f"{name} {known.get(name, '')}".rstrip() + "\n" for name in sorted(passing)))
        print(f"{len(passing)} tests pass with ONNX Runtime's package")
        return
    found = outcomes(python, tests, folder / "found.xml", "-m", "byoc.onnxruntime")
    passed = [name for name in known if found.get(name) == "passed"]
    print(f"{len(passed)} of {len(known)} pass with byoc")
    unexpected = 0
    for name, reason in known.items():
        is_passed = found.get(name) == "passed"
        if is_passed is bool(reason):
            unexpected += 1
            print(f"{name}: {'passes, with a reason to fail: ' + reason if is_passed else found.get(name, 'not run')}")
        elif reason:
            print(f"{name} fails: {reason}")
    sys.exit(1 if unexpected else 0)


main()
