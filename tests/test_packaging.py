"""The version files in requirements/ agree with the ranges of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
    # requirements/app.txt has the packages of that extra, which `make test-app` installs
    assert not [name for name, range_ in declared(without={"app"}).items() if versions[name] not in range_]
    assert {"hatchling", "editables"} <= set(versions)  # builds the package itself
    lines = [line for line in lock.splitlines() if not line.startswith("    --hash=sha256:")]
    assert len(lines) == len(versions) and all(line.endswith(" \\") for line in lines)
    assert not re.search(r"https?:|file:|/|@", lock)
