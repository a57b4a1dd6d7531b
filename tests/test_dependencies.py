"""What can be said of dependencies without a network: every one is pinned, and it is what runs."""

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
TOOLS = {"pip", "setuptools", "wheel", "sottovoce"}  # what an environment comes with, and ourselves


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text.strip()).lower()


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {_name(name): version.strip() for name, version in pairs}


def test_every_pin_is_exact_and_whatever_is_installed_is_what_was_pinned() -> None:
    pins = _pins()
    installed = {_name(one.metadata["Name"]): one.version for one in metadata.distributions()}
    # A build for one machine has a local version, such as 2.1+cpu.
    other = {
        name: version
        for name, version in installed.items()
        if name in pins and version.partition("+")[0] != pins[name]
    }
    assert other == {}
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins.values())


def test_everything_that_a_requirement_names_is_pinned() -> None:
    required = metadata.requires("sottovoce") or []
    names = {_name(re.split(r"[\s\[<>=!;~(]", text)[0]) for text in required}
    assert names - set(_pins()) <= TOOLS


def test_requirements_of_what_is_installed_are_met() -> None:
    """What `pip check` looks for, without a process that imports pip."""
    installed = {_name(one.metadata["Name"]): one for one in metadata.distributions()}
    unmet = [
        f"{name}: {required}"
        for name, one in installed.items()
        for required in map(Requirement, one.requires or [])
        if required.marker is None or required.marker.evaluate({"extra": ""})
        for found in [installed.get(_name(required.name))]
        if found is None or not required.specifier.contains(found.version, prereleases=True)
    ]
    assert unmet == []
