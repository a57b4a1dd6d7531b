"""Keys, ledgers and runs that lie in a checkout are in no image and in no commit."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "examples" / "flower" / "Dockerfile"
# Where the documentation's commands, or somebody who tries things out, leave them.
SECRETS = [
    f"{folder}{name}"
    for folder in ("federation/", "fed/", "src/fed/", "src/sottovoce/fed/", "examples/flower/fed/")
    for name in (
        "certificates/ca.key",
        "certificates/link.key",
        "link/flower.sqlite",
        "link/flower.sqlite-wal",
        "runs/one/ledger.sqlite",
        "sites/a/node.key",
        "sites/a/ledger.sqlite",
        "sites/a/ledger.sqlite-shm",
    )
]
SECRETS += ["node.key", "ledger.sqlite", "src/sottovoce/ledger.sqlite", "demo-run/ledger.sqlite"]
PLAIN = ["federation/sites/a/site.toml", "site/site.toml", ".git/config", ".venv/bin/python"]


def _matches(pattern: str, path: str) -> bool:
    """Whether a line of .dockerignore names a path or a folder above it."""
    parts = [
        "(?:.*/)?" if part == "**/" else ".*" if part == "**" else "[^/]*" if part == "*"
        else "[^/]" if part == "?" else re.escape(part)
        for part in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern.strip("/"))
    ]  # fmt: skip
    return re.fullmatch("".join(parts) + "(?:/.*)?", path) is not None


def _in_context(path: str) -> bool:
    """Whether Docker sends a file of the checkout to the builder: the last line that matches."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and _matches(line.removeprefix("!"), path):
            sent = line.startswith("!")
    return sent


def _needed() -> set[str]:
    """Every file that the image is built from."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src/sottovoce", "src/native")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    return found | {"pyproject.toml", "setup.py", "README.md", "LICENSE", "constraints.txt"}


def test_nothing_but_what_the_image_installs_is_sent_to_the_builder() -> None:
    assert [path for path in [*SECRETS, *PLAIN] if _in_context(path)] == []
    assert [path for path in sorted(_needed()) if not _in_context(path)] == []


def test_the_image_copies_by_name_what_is_sent() -> None:
    copied = [
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY ")
        for source in shlex.split(line)[1:-1]
    ]
    assert copied
    assert not {".", "./", "*", "src"} & set(copied)
    assert all((ROOT / source).exists() for source in copied)
    missing = {
        path
        for path in _needed()
        if not any(path == one or path.startswith(f"{one}/") for one in copied)
    }
    assert missing == set()


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="a checkout"
)
def test_git_ignores_what_a_federation_keeps() -> None:
    found = subprocess.run(
        ["git", "check-ignore", "--stdin", "--no-index"],
        cwd=ROOT,
        input="\n".join(SECRETS),
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(found.stdout.split()) == sorted(SECRETS)
    tracked = subprocess.run(
        ["git", "ls-files", "-ci", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [name for name in tracked.stdout.split() if name.startswith(("src", "tests"))] == []
