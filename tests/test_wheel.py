"""What strangers install: built from the sdist, with and without a compiler, in a clean place.

Nothing is fetched. The clean environment has the declared dependencies and what those need, linked
from where the tests run, and nothing else: an import that is not declared fails there.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sottovoce
from sottovoce.core import native
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.kernels import one_bit

ROOT = Path(__file__).parent.parent
BUILD = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
COMPILERS = {"with": {}, "without": {"CC": "/bin/false", "CXX": "/bin/false"}}
ENCODE = (
    "from sottovoce.mechanisms.kernels import one_bit\n"
    "from sottovoce.core.randomness import Keystream\n"
    "print(one_bit.sample_payload([0.1] * 1000, 1.0, Keystream(bytes(32))).tobytes().hex())\n"
)
SECRETS = (
    "federation/certificates/ca.key",
    "src/sottovoce/fed/sites/a/node.key",
    "src/sottovoce/fed/sites/a/site.toml",
    "src/sottovoce/runs/ledger.sqlite",
)
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return done


def clean_environment(**changes: str) -> dict[str, str]:
    """Without a PYTHONPATH that would show the source tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, **changes}


def keep(path: Path) -> None:
    """Where somebody wants to publish what was tested."""
    if wanted := os.environ.get("KEEP_BUILT"):
        folder = ROOT / wanted
        folder.mkdir(exist_ok=True)
        shutil.copy(path, folder)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From a copy of the tree: nothing is left behind in the real one, nor taken from it."""
    copy = tmp_path_factory.mktemp("source") / "sottovoce"
    built = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "*.egg-info", ".*_cache")
    lying_about = {
        ".git", ".venv", "build", "dist", "results",
        ".hypothesis", "runs", "demo-run", "experiments-out", "site",
    }  # fmt: skip

    def unwanted(folder: str, names: list[str]) -> set[str]:
        # At the top only: sottovoce.runs is a package of ours.
        return built(folder, names) | (lying_about if Path(folder) == ROOT else set())

    shutil.copytree(ROOT, copy, ignore=unwanted)
    for name in SECRETS:  # as somebody who tries things out in a checkout has them
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("secret")
    out = tmp_path_factory.mktemp("sdist")
    program = f"import setuptools.build_meta as b; b.build_sdist({str(out)!r})"
    run(sys.executable, "-c", program, cwd=copy, env=clean_environment())
    (found,) = out.glob("sottovoce-*.tar.gz")
    keep(found)
    return found


@pytest.fixture(scope="module")
def wheels(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, changes in COMPILERS.items():
        out = tmp_path_factory.mktemp(f"{name}-compiler")
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir"]
        run(*BUILD, "wheel", *options, "-w", out, sdist, env=clean_environment(**changes))
        (found[name],) = out.glob("sottovoce-*.whl")
    keep(found["with"])
    return found


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def package_files() -> set[str]:
    """Every file of the package, as it will be called in a wheel."""
    source = ROOT / "src"
    return {
        path.relative_to(source).as_posix()
        for path in (source / "sottovoce").rglob("*")
        if path.is_file() and path.suffix not in (".so", ".pyd", ".pyc")
    }


def test_the_wheel_holds_every_file_of_the_package(wheels: dict[str, Path]) -> None:
    expected = package_files()
    assert {"sottovoce/py.typed", "sottovoce/mechanisms/design/shipped.npz"} < expected
    for wheel in wheels.values():
        found = names_in(wheel)
        assert expected - found == set()
        ours = {name for name in found if name.startswith("sottovoce/")}
        assert {name for name in ours - expected if "_native" not in name} == set()


def test_the_sdist_holds_what_a_build_and_a_reader_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    native_sources = {f"src/native/{path.name}" for path in (ROOT / "src/native").glob("*.[ch]")}
    assert native_sources
    assert native_sources <= found
    assert {f"src/{name}" for name in package_files()} <= found
    documents = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md")
    assert set(documents) <= found


def test_keys_and_ledgers_of_a_checkout_are_in_no_archive(
    sdist: Path, wheels: dict[str, Path]
) -> None:
    with tarfile.open(sdist) as archive:
        found = set(archive.getnames()).union(*map(names_in, wheels.values()))
    assert [name for name in found if name.endswith(tuple(map(os.path.basename, SECRETS)))] == []


def test_the_extension_is_in_the_wheel_only_where_there_is_a_compiler(
    wheels: dict[str, Path],
) -> None:
    def has_extension(name: str) -> bool:
        return any("_native" in entry and ".py" not in entry for entry in names_in(wheels[name]))

    assert not has_extension("without")
    if any(map(shutil.which, ("gcc", "clang"))):
        assert has_extension("with")


# -- installed -------------------------------------------------------------------------------


def needed_by(requirements: list[str], seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """The distributions that requirements name, and what those need, each once."""
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        wanted = re.split(r"[\s<>=!~\[(]", name.strip(), maxsplit=1)[0].lower().replace("_", "-")
        if "extra" in marker or wanted in seen:
            continue
        seen.add(wanted)
        try:
            found = importlib.metadata.distribution(wanted)
        except importlib.metadata.PackageNotFoundError:  # for another platform or Python
            continue
        yield found
        yield from needed_by(found.requires or [], seen)


def requirements_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)


@pytest.fixture(scope="module", params=list(COMPILERS))
def installed(
    request: pytest.FixtureRequest,
    wheels: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path]:
    """An environment with one of the wheels; its name and its folder of programs."""
    folder = tmp_path_factory.mktemp(f"environment-{request.param}")
    venv.create(folder, symlinks=os.name != "nt")
    place = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=place))
    programs = Path(sysconfig.get_path("scripts", "venv", vars=place))
    for distribution in needed_by(requirements_in(wheels[request.param]), set()):
        for file in distribution.files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    options = ["--quiet", "--no-deps", "--no-index", wheels[request.param]]
    run(*BUILD, "--python", programs / "python", "install", *options, env=clean_environment())
    return request.param, programs


def test_the_installed_package_is_the_wheels_own(installed: tuple[str, Path]) -> None:
    _, programs = installed
    program = "import sottovoce; print(sottovoce.__file__)"
    shown = run(programs / "python", "-c", program, cwd=programs, env=clean_environment())
    assert shown.stdout.startswith(str(programs.parent))
    shown = run(programs / "sottovoce", "--version", cwd=programs, env=clean_environment())
    assert shown.stdout.strip() == f"sottovoce {sottovoce.__version__}"


def test_the_doctor_is_content_and_says_which_kernels_there_are(
    installed: tuple[str, Path], tmp_path: Path
) -> None:
    name, programs = installed
    environment = clean_environment(SOTTOVOCE_CACHE=str(tmp_path), SOTTOVOCE_DATA=str(tmp_path))
    shown = run(programs / "sottovoce", "doctor", "--json", cwd=tmp_path, env=environment)
    found = json.loads(shown.stdout)
    assert found["usable"] is True
    assert found["version"] == sottovoce.__version__
    absent = {package["name"] for package in found["packages"] if package["version"] is None}
    assert {"torch", "flwr", "pandas"} <= absent
    problems = " ".join(problem["problem"] for problem in found["problems"])
    if name == "without":
        assert found["kernels"]["levels"] == ["numpy"]
        assert "the C kernels are not built" in problems
    else:
        assert found["kernels"]["levels"] == list(native.levels())
    assert "torch is not installed" in problems


def test_the_same_bytes_with_and_without_a_compiler(installed: tuple[str, Path]) -> None:
    name, programs = installed
    done = run(programs / "python", "-c", ENCODE, cwd=programs, env=clean_environment())
    payload = one_bit.sample_payload([0.1] * 1000, 1.0, Keystream(bytes(32)))
    assert done.stdout.strip() == payload.tobytes().hex()
    warned = "the C kernels of Sottovoce are not built" in done.stderr
    assert warned is (name == "without" or native.levels() == ("numpy",))


def test_what_needs_only_core_packages_works(installed: tuple[str, Path], tmp_path: Path) -> None:
    _, programs = installed
    environment = clean_environment(SOTTOVOCE_CACHE=str(tmp_path))
    for line in (
        "plan --epsilon 2 --delta 1e-5 --dimension 50 --json",
        "privacy spend --mechanism gaussian --param noise_multiplier=1 --delta 1e-5 --json",
        "mechanism list --json",
    ):
        shown = run(programs / "sottovoce", *line.split(), cwd=tmp_path, env=environment)
        assert json.loads(shown.stdout)


def test_what_needs_an_extra_names_it(installed: tuple[str, Path], tmp_path: Path) -> None:
    _, programs = installed
    done = subprocess.run(
        [programs / "sottovoce", "run", ROOT / "examples" / "one_bit.toml"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'sottovoce[learn]'" in done.stderr
    assert "Traceback" not in done.stderr
