"""One register for everything that can be added: mechanisms, models, algorithms, commands ...

    MECHANISMS: Register[Registration] = Register("mechanism", package="sottovoce.mechanisms")
    MODELS: Register[Model] = Register("model", places={"mlp": "sottovoce.learning..."})

Our own are entered when their module is imported: all modules of `package` when somebody asks, or
the one module that `places` names when its name is asked for. Those of other distributions are
named by entry points: the group is `sottovoce.<kinds>`, the entry point's name is the name of what
its module enters.

    [project.entry-points."sottovoce.mechanisms"]
    whisper = "my_package.whisper"

A plug-in is imported when it is asked for, so one that is broken breaks nobody else. A name belongs
to one: whoever asks for a name that two claim gets an error that names both, and neither.

The distribution sottovoce-papers (package `sottovoce_papers`) is written and tested with this one.
It registers by entry points like any other, but counts as ours: no claim of it is marked as a
plug-in's. Its entries are listed with the source 'sottovoce-papers'.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from sottovoce.core.errors import PluginError, UnknownNameError

if TYPE_CHECKING:  # takes a while to load
    from importlib.metadata import EntryPoint

T = TypeVar("T")

OURS = "sottovoce"
PAPERS = "sottovoce-papers"
OUR_SOURCES = (OURS, PAPERS)
_PAPERS_PACKAGE = "sottovoce_papers"
# What claims a cost, or hides something: papers bring none, and one in their name is a plug-in's.
_CLAIMS = ("sottovoce.mechanisms", "sottovoce.channels", "sottovoce.samplings")

# What sottovoce-papers registers, for the error where it is not installed.
_IN_PAPERS: Mapping[str, tuple[str, ...]] = {
    "sottovoce.models": (
        "femnist_convnet",
        "resnet18",
        "small_cifar_cnn",
        "strided_cnn",
        "tanh_convnet",
        "udp_medical_cnn",
        "udp_mnist_cnn",
        "wind_cnn",
    ),
    "sottovoce.aggregations": ("mode_connectivity",),
    "sottovoce.features": ("scattering", "precondition"),
    "sottovoce.datasets": (
        "cifar10",
        "femnist",
        "gefcom_wind",
        "medical_mnist",
        "medmnist:",
        "pneumonia_mnist",
        "utkface",
        "utkface-race",
    ),
    "sottovoce.algorithms": ("nbafl",),
    "sottovoce.commands": ("experiment", "benchmark"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """What a module entered under a name; `source` says whose it is, as `Register.source` does."""

    value: T
    module: str
    source: str

    @property
    def ours(self) -> bool:
        return self.source in OUR_SOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A name in a register: where it is from, and what is wrong with it, if anything is."""

    name: str
    source: str
    problem: str | None = None


def is_ours(module: str) -> bool:
    """Return whether a module belongs to this package."""
    return module.partition(".")[0] == OURS


class Register(Generic[T]):
    """Everything of one kind, by name; `kind` is a word for people, its plural names the group.

    Args:
        kind: What one of them is called.
        package: Where ours are; all its modules are imported to find any of them.
        inside: The module that enters where one of ours is a folder of `package`.
        places: The module of each of ours by name, where only that one is to be imported.
    """

    def __init__(
        self,
        kind: str,
        *,
        package: str | None = None,
        inside: str = "",
        places: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.group = f"{OURS}.{kind}s"
        self._package, self._inside, self._places = package, inside, dict(places or {})
        self._entries: dict[str, Entry[T]] = {}
        self._problems: dict[str, str] = {}
        self._loading: EntryPoint | None = None
        self._complete = False

    def enter(self, name: str, value: T, *, module: str) -> None:
        """Enter what `module` defines; another module's name is refused."""
        if not is_ours(module):
            self._import_ours()
            if name in self._places:  # ours has the name, whoever is imported first
                importlib.import_module(self._places[name])
        known, source = self._entries.get(name), self._source(name, module)
        if known is not None and known.module != module:
            raise self._taken(name, [known.source, source])
        self._entries[name] = Entry(value=value, module=module, source=source)

    def find(self, name: str) -> T:
        """What has this name; an error that names the nearest, or what is wrong with it."""
        self._import_ours()
        claims = self._claims(name)
        if len(claims) > 1:
            raise self._taken(name, claims)
        if name not in self._entries and name in self._places:
            importlib.import_module(self._places[name])
        if name not in self._entries:
            entry_point = self._entry_points().get(name)
            if not entry_point:
                raise self.unknown(name)
            self._load(entry_point[0])
        return self._entries[name].value

    def find_ours(self, name: str) -> T | None:
        """Return ours of this name, and import nobody else's code.

        None where the name is unknown, another's, or claimed twice, and where its module needs
        something that is not installed: `find` says which.
        """
        if not self.is_ours(name):
            return None
        try:
            return self.find(name)
        except (PluginError, ModuleNotFoundError):
            return None

    def is_ours(self, name: str) -> bool:
        """Return whether a name is ours; imports no plug-in of others."""
        self._import_ours()
        claims = self._claims(name)
        return bool(claims) and all(source in OUR_SOURCES for source in claims)

    def ours(self) -> dict[str, T]:
        """Those of this package and of sottovoce-papers that can be used here, by name."""
        found = {name: self.find_ours(name) for name in self.names() if self.is_ours(name)}
        found |= {name: entry.value for name, entry in self._entries.items() if entry.ours}
        return {name: value for name, value in sorted(found.items()) if value is not None}

    def is_in_papers(self, name: str) -> bool:
        """Return whether nobody has the name here, and sottovoce-papers would bring it."""
        return name in _IN_PAPERS.get(self.group, ()) and name not in self.names()

    def unknown(self, name: str, known: Iterable[str] | None = None) -> UnknownNameError:
        """Return the error for a name that nobody has, with the nearest of those `known`."""
        if self.is_in_papers(name):
            return UnknownNameError(
                f"the {self.kind} '{name.removesuffix(':')}' comes with the package {PAPERS}, "
                f"which is not installed; install it: pip install {PAPERS}, or 'make install' in "
                "a checkout"
            )
        return UnknownNameError.among(self.kind, name, self.names() if known is None else known)

    def every(self) -> dict[str, T]:
        """All that work, by name; what is wrong with the others, `listed` says."""
        found = {}
        for one in self.listed():
            entry = self._entries.get(one.name)
            if entry is not None and (one.problem is None or entry.ours):
                found[one.name] = entry.value
        return found

    def imported(self) -> Mapping[str, T]:
        """What has been entered so far; imports our own, and no plug-in."""
        self._import_ours()
        return {name: entry.value for name, entry in self._entries.items()}

    def names(self) -> list[str]:
        """Every name that somebody claims; imports no plug-in."""
        self._import_ours()
        return sorted({*self._entries, *self._places, *self._entry_points()})

    def listed(self) -> list[Listed]:
        """Every name with its source; plug-ins are imported to see whether they work."""
        rows = []
        for name in self.names():
            problem = None
            try:
                self.find(name)
            except PluginError as error:
                problem = str(error)
            except ModuleNotFoundError as error:  # ours, and an extra is not installed
                if name not in self._places:
                    raise
                problem = f"needs {error.name}, which is not installed"
            rows += [
                Listed(name=name, source=source, problem=problem) for source in self._claims(name)
            ]
        return rows

    def source(self, name: str) -> str:
        """Where a name is from: 'sottovoce', 'sottovoce-papers', 'distribution NAME VERSION'."""
        return self._entries[name].source

    def sources(self, name: str) -> list[str]:
        """Return the sources of everybody who claims a name; imports no plug-in."""
        self._import_ours()
        return self._claims(name)

    def plug_in(self, name: str) -> str | None:
        """How to name a plug-in to people; None for our own."""
        found = self._entries[name]
        return None if found.ours else f"plug-in {self.kind} '{name}' ({found.source})"

    def _taken(self, name: str, sources: list[str]) -> PluginError:
        return PluginError(
            f"two {self.kind}s claim the name '{name}': {' and '.join(sources)}; rename or "
            "uninstall one"
        )

    def _import_ours(self) -> None:
        if self._complete or self._package is None:
            return
        self._complete = True  # a module that asks while it is imported must not start anew
        try:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                name = f"{self._package}.{module.name}"
                deeper = module.ispkg and self._inside
                importlib.import_module(f"{name}.{self._inside}" if deeper else name)
        except BaseException:
            self._complete = False
            raise

    def _load(self, entry_point: "EntryPoint") -> None:
        """Import a plug-in's module, which enters what it is named after."""
        name = entry_point.name
        if name not in self._problems:
            before, self._loading = self._loading, entry_point
            try:
                importlib.import_module(entry_point.module)
            except (Exception, SystemExit) as error:
                self._problems[name] = f"{type(error).__name__}: {error}"
            else:
                if name not in self._entries:
                    self._problems[name] = (
                        f"module {entry_point.module} enters no {self.kind} '{name}'"
                    )
            finally:
                self._loading = before
        if name in self._problems:
            raise PluginError(
                f"the plug-in {self.kind} '{name}' ({_distribution(entry_point)}) cannot be used: "
                f"{self._problems[name]}; mend or uninstall it"
            )

    def _claims(self, name: str) -> list[str]:
        """The sources of everybody who claims a name."""
        entry = self._entries.get(name)
        claims = [entry.source] if entry else [OURS] if name in self._places else []
        for one in self._entry_points().get(name, ()):
            if _distribution(one) not in claims:
                claims.append(_distribution(one))
        return claims

    def _source(self, name: str, module: str) -> str:
        if is_ours(module):
            return OURS
        if self.group not in _CLAIMS and module.partition(".")[0] == _PAPERS_PACKAGE:
            return PAPERS
        for one in self._entry_points().get(name, ()):
            if module == one.module or module.startswith(f"{one.module}."):
                return _distribution(one)
        return _distribution(self._loading) if self._loading else f"module {module}"

    def _entry_points(self) -> dict[str, list["EntryPoint"]]:
        found: dict[str, list[EntryPoint]] = {}
        for one in _installed(self.group, tuple(sys.path)):
            found.setdefault(one.name, []).append(one)
        return found


def named_by_plug_ins(group: str) -> list[str]:
    """Return the names that installed distributions claim in a group; imports none of them."""
    return sorted({one.name for one in _installed(group, tuple(sys.path))})


@lru_cache(maxsize=64)
def _installed(group: str, path: tuple[str, ...]) -> tuple["EntryPoint", ...]:  # noqa: ARG001
    """The entry points of a group; what can be found depends on the path."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _distribution(entry_point: "EntryPoint") -> str:
    found = entry_point.dist
    of_papers = entry_point.module.partition(".")[0] == _PAPERS_PACKAGE
    if found and found.name.replace("_", "-") == PAPERS and of_papers:
        return f"distribution {PAPERS}" if entry_point.group in _CLAIMS else PAPERS
    return f"distribution {found.name} {found.version}" if found else "an unnamed distribution"
