"""The version files agree with pyproject.toml; the wheels hold their packages, and work with torch alone."""

from __future__ import annotations

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TOOLS = {"ruff", "mypy"}  # what they report changes between versions; only the lock decides


def declared(*, without=()):
    """The range of every package that pyproject.toml names, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in without]
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    named = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): each.specifier for each in named if each.name != "hamburger"}


def pinned(name):
    pins = re.findall(r"^([\w.-]+)==([^\s\\;]+)", (ROOT / "requirements" / name).read_text(), re.M)
    return {canonicalize_name(package): version for package, version in pins}


def test_minimum_versions_are_the_lower_bounds():
    bounds = {name: str(specifier).removeprefix(">=") for name, specifier in declared().items() if name not in TOOLS}
    assert pinned("minimum.txt") == bounds


def test_the_lock_satisfies_the_ranges_and_has_a_hash_for_every_package():
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    versions = pinned("lock.txt")
    # not locked: app and frameworks, which `make test-app` and `make test-examples` install, and notebook
    locked = declared(without={"app", "notebook", "huggingface", "smp"})
    assert not [name for name, range_ in locked.items() if versions[name] not in range_]
    assert {"hatchling", "editables"} <= set(versions)  # builds the package itself
    lines = [line for line in lock.splitlines() if not line.startswith("    --hash=sha256:")]
    assert len(lines) == len(versions) and all(line.endswith(" \\") for line in lines)
    assert not re.search(r"https?:|file:|/|@", lock)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("cpu", [True, False])
def test_make_setup_takes_torch_without_cuda_where_asked(cpu, tmp_path):
    command = ["make", "-n", "setup", f"VENV={tmp_path}", *(["CPU=1"] if cpu else ["LOCK=requirements/lock.txt"])]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    index = "torch torchvision --index-url https://download.pytorch.org/whl/cpu"
    calls = [line.partition(" -m pip install --quiet ")[2] for line in printed.splitlines() if " -m pip " in line]
    assert [call for call in calls if call.endswith(index)] == [index] * cpu
    if cpu:  # first torch, then what needs it
        assert calls[-2:] == [index, "-e '.[dev]' -e lab"] and "--require-hashes" not in printed
        assert f"pip install {index}\npip install '.[train]'" in (ROOT / "docs/start.md").read_text()
    else:
        assert calls[0] == "--require-hashes -r requirements/lock.txt"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    def build_wheel(root):
        folder = tmp_path_factory.mktemp("wheel")
        return next(WheelBuilder(str(root)).build(directory=str(folder), versions=["standard"]))

    return build_wheel


@pytest.mark.parametrize(("root", "package"), [(ROOT, "hamburger"), (ROOT / "lab", "hamburger_lab")])
def test_a_wheel_holds_one_package_its_data_and_the_license(build, root, package):
    path = Path(build(root))
    with zipfile.ZipFile(path) as wheel:
        names = {PurePosixPath(name) for name in wheel.namelist()}
        metadata = email.message_from_bytes(wheel.read(f"{package}-0.2.0.dist-info/METADATA"))
    assert path.stat().st_size < 12e6
    source = (root / "src" if package == "hamburger" else root) / package
    files = {path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {name for name in names if name.parts[0] == package} == {
        PurePosixPath(package, path.relative_to(source).as_posix()) for path in files
    }
    assert {name.parts[0] for name in names} == {package, f"{package}-0.2.0.dist-info"}
    assert PurePosixPath(f"{package}-0.2.0.dist-info/licenses/LICENSE") in names
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    unconditional = {each.name for each in required if each.marker is None}
    assert unconditional == ({"torch"} if package == "hamburger" else {"hamburger", "scikit-learn"})
    assert metadata["Description-Content-Type"] == "text/markdown"


def outside_torch():
    """Modules of installed distributions that neither torch nor its requirements bring: pip would not install them."""
    wanted, reached = ["torch"], set()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in reached:
            continue
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        reached.add(name)
        required = [Requirement(line) for line in lines]
        wanted += [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    owners = importlib.metadata.packages_distributions().items()
    return {module for module, names in owners if not reached & {*map(canonicalize_name, names)}} - {"hamburger"}


# What `pip install hamburger` does not install cannot be imported
TORCH_ALONE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())
sys.path.insert(0, {wheel!r})
import torch
import hamburger as hb

assert hb.__file__.startswith({wheel!r})
layer = hb.Hamburger(16, rank=4)
layer(torch.rand(2, 16, 4, 4)).sum().backward()
hb.decompose(torch.rand(1, 8, 20), "cd", rank=2)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 1), torch.nn.Conv2d(16, 2, 1))
hb.insert_context(net, {{"0": "vq"}}, example=torch.rand(1, 3, 8, 8))
for name in hb.list_contexts():
    hb.create_context(name, channels=64)
try:
    hb.load
except ImportError as error:
    print(error)
"""


def test_the_wheel_works_with_torch_alone(build):
    packages = outside_torch()
    assert {"numpy", "PIL", "timm", "typer", "pytest"} <= packages and not {"torch", "sympy", "filelock"} & packages
    script = TORCH_ALONE.format(packages=packages, wheel=build(ROOT))  # Python imports from zip files
    ended = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (
        "hamburger.load needs numpy; run pip install 'hamburger[train]', in a clone pip install -e '.[train]'\n"
    )
