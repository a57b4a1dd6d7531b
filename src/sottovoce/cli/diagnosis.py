"""The examination of an installation, with a self test, for the command `sottovoce doctor`."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sottovoce.cli.self_test import SelfTestCheck, self_test
from sottovoce.core import extras, native, threads
from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.learning import datasets
from sottovoce.mechanisms.design import store
from sottovoce.version import __version__

_COMPILERS = ("cc", "gcc", "clang")
_FLOWER_PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Python package that is used.

    Attributes:
        name: Its distribution.
        version: The version; None if it is not installed.
        needed: Whether nothing works without it; the others are optional.
        purpose: What it is needed for.
        install: The command that installs it.
    """

    name: str
    version: str | None
    needed: bool
    purpose: str
    install: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The implementations of encoding and decoding; all give the same bits.

    Attributes:
        in_use: The implementation ("level") that is used: "numpy", or one of the C kernels, named
            by instruction set; "none" if $SOTTOVOCE_KERNELS names one that cannot run here.
        levels: All levels that this machine can run, the slowest ("numpy") first.
        cuda: Whether Triton kernels can run on a GPU.
        threads: The number of threads that the kernels use.
        compiler: The path of a C compiler; None if there is none.
    """

    in_use: str
    levels: tuple[str, ...]
    cuda: bool
    threads: int
    compiler: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlace:
    """A folder that is used.

    Attributes:
        what: What it is for.
        path: Where it is.
        chosen_by: The environment variable that sets it, or that it is the default.
        exists: Whether it exists.
        writable: Whether files can be written there.
        holds: What was found in it.
    """

    what: str
    path: str
    chosen_by: str
    exists: bool
    writable: bool
    holds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong or missing.

    Attributes:
        problem: What is wrong.
        remedy: What to do.
        serious: Whether nothing works without the remedy.
    """

    problem: str
    remedy: str
    serious: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The state of an installation: versions, packages, folders, self tests and problems.

    Attributes:
        version: The version of Sottovoce.
        python: The version of Python.
        executable: The path of the Python interpreter.
        platform: The operating system and its version.
        installed_at: The folder of the package.
        packages: The needed and optional packages, installed or not.
        kernels: The implementations of encoding and decoding.
        places: The folders of data, designs and temporary files.
        programs: The paths of Flower's programs; None for one that is not found, and empty if
            Flower is not installed.
        checks: The results of the self test.
        problems: What is wrong or missing, with remedies.
    """

    version: str
    python: str
    executable: str
    platform: str
    installed_at: str
    packages: tuple[Package, ...]
    kernels: Kernels
    places: tuple[CheckedPlace, ...]
    programs: dict[str, str | None]
    checks: tuple[SelfTestCheck, ...]
    problems: tuple[Problem, ...]

    @property
    def usable(self) -> bool:
        """Whether every self test passed."""
        return all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain data, with the key `usable`."""
        return {"usable": self.usable, **asdict(self)}


def diagnose() -> Diagnosis:
    """Return the state of this installation, with the results of a self test that is run now.

    It works where only core packages are installed; a failed check is a result, not an error.
    """
    packages, problems = _packages(), []
    kernels, more = _kernels()
    problems += more
    places = _places()
    problems += _missing(packages)
    for place in places:
        if not place.writable:
            problems.append(
                Problem(
                    problem=f"the folder for {place.what}, {place.path}, cannot be written to",
                    remedy=f"change its permissions, or choose another ({place.chosen_by})",
                )
            )
    checks = self_test()
    problems += [
        Problem(
            problem=f"the self test '{check.name}' fails: {check.detail}",
            remedy="reinstall with pip install --force-reinstall --no-cache-dir sottovoce; if it "
            "still fails, report it with this output",
            serious=True,
        )
        for check in checks
        if not check.ok
    ]
    return Diagnosis(
        version=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        installed_at=str(Path(__file__).parents[1]),
        packages=packages,
        kernels=kernels,
        places=places,
        programs={name: _program(name) for name in _programs()},
        checks=checks,
        problems=tuple(problems),
    )


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> tuple[Package, ...]:
    core = [
        Package(
            name=name,
            version=_version_of(name),
            needed=True,
            purpose="everything",
            install=f"pip install {name}",
        )
        for name in extras.CORE
    ]
    optional = [
        Package(
            name=one.distribution,
            version=_version_of(one.distribution) or _alias_version(one),
            needed=False,
            purpose=one.purpose,
            install=one.install,
        )
        for one in extras.OPTIONAL
    ]
    return (*core, *optional)


def _alias_version(one: extras.OptionalPackage) -> str | None:
    """Return the version of a module installed by another distribution, as mlflow-skinny's is."""
    return _version_of(one.module) if importlib.util.find_spec(one.module) else None


def _missing(packages: tuple[Package, ...]) -> list[Problem]:
    """Return a problem for each missing package that is needed or commonly used."""
    wanted = ("torch", "scikit-learn")
    return [
        Problem(
            problem=f"{package.name} is not installed: {package.purpose} needs it",
            remedy=package.install,
            serious=package.needed,
        )
        for package in packages
        if package.version is None and (package.needed or package.name in wanted)
    ]


def _kernels() -> tuple[Kernels, list[Problem]]:
    problems = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", native.NativeMissingWarning)
            chosen = native.native()
        in_use = chosen.name if chosen else "numpy"
    except SottovoceError as error:
        in_use = "none"
        problems.append(
            Problem(problem=str(error), remedy=f"unset {native.VARIABLE}", serious=True)
        )
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if len(native.levels()) == 1:
        install = "" if compiler else "install a C compiler (gcc or clang), then "
        problems.append(
            Problem(
                problem="the C kernels are not built, or are those of another version: numpy "
                "gives the same bits, more slowly",
                remedy=f"{install}pip install --force-reinstall --no-cache-dir --no-deps sottovoce",
            )
        )
    try:
        number = threads.thread_count()
    except SottovoceError as error:
        number = 1
        problems.append(Problem(problem=str(error), remedy=f"unset {threads.VARIABLE}"))
    return (
        Kernels(
            in_use=in_use,
            levels=native.levels(),
            cuda=_cuda(),
            threads=number,
            compiler=compiler,
        ),
        problems,
    )


def _cuda() -> bool:
    """Return whether Triton kernels can run; not if torch cannot be imported."""
    from sottovoce.mechanisms.kernels import cuda

    try:
        return cuda.available()
    except (ImportError, OSError):
        return False


def _places() -> tuple[CheckedPlace, ...]:
    data = datasets.data_folder()
    found = sorted(
        entry.name
        for entry in datasets.entries()
        if not entry.takes_argument and datasets.where_found(entry.name)
    )
    designs = store.cache_folder()
    solved = len(list(designs.glob("*.json"))) if designs.is_dir() else 0
    temporary = Path(tempfile.gettempdir())
    return (
        _place("data sets", data, "SOTTOVOCE_DATA", ", ".join(found) or "no data set"),
        _place("solved designs", designs, "SOTTOVOCE_CACHE", f"{solved} designs"),
        _place("temporary files", temporary, "TMPDIR", ""),
    )


def _place(what: str, path: Path, variable: str, holds: str) -> CheckedPlace:
    return CheckedPlace(
        what=what,
        path=str(path),
        chosen_by=f"${variable}"
        if os.environ.get(variable)
        else f"default; ${variable} changes it",
        exists=path.is_dir(),
        writable=_can_be_written(path),
        holds=holds,
    )


def _can_be_written(path: Path) -> bool:
    """Return whether files can be written to a folder, or the folder can be created."""
    existing = next(one for one in (path, *path.absolute().parents) if one.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _programs() -> tuple[str, ...]:
    """Return the programs of Flower, which federations need, if it is installed."""
    return _FLOWER_PROGRAMS if importlib.util.find_spec("flwr") else ()


def _program(name: str) -> str | None:
    from sottovoce.deployment.machines.processes import program

    try:
        return program(name)
    except DeploymentError:
        return None
