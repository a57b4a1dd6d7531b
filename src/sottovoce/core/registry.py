"""A register of named things that can be added: mechanisms, models, algorithms, commands and more.

    MECHANISMS: Register[Registration] = Register("mechanism", package="sottovoce.mechanisms")
    MODELS: Register[Model] = Register("model", places={"mlp": "sottovoce.learning..."})

Sottovoce's own things are entered when their module is imported: all modules of `package` at the
first request, or only the module that `places` gives for the requested name. Those of other
distributions are found by entry points: the group is `sottovoce.<kind>s`, and the name of the entry
point is the name of the thing that its module enters.

    [project.entry-points."sottovoce.mechanisms"]
    my_mechanism = "my_package.my_mechanism"

A plug-in is imported when its name is requested, or when all are listed; a broken plug-in affects
nothing else. A name belongs to one source: if two claim it, a request for it raises an error that
names both.

The distribution sottovoce-papers (package `sottovoce_papers`) is written and tested together with
this one. It registers by entry points like any other, but is not treated as a plug-in: its claims
are not marked. Its entries are listed with the source 'sottovoce-papers'.
"""

import importlib
import pkgutil
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from sottovoce.core.errors import PluginError, UnknownNameError

if TYPE_CHECKING:  # This module is slow to import.
    from importlib.metadata import EntryPoint

T = TypeVar("T")

OURS = "sottovoce"
PAPERS = "sottovoce-papers"
OUR_SOURCES = (OURS, PAPERS)
_PAPERS_PACKAGE = "sottovoce_papers"
# Groups whose entries claim a privacy cost or a protection. sottovoce-papers registers none, so an
# entry of these groups in its name is treated as a plug-in's.
_CLAIMS = (
    "sottovoce.accountants",
    "sottovoce.channels",
    "sottovoce.mechanisms",
    "sottovoce.samplings",
)

# The names that sottovoce-papers registers, for the error message if it is not installed.
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
        "femnist-all",
        "gefcom_wind",
        "gefcom_wind-farms",
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
class RegisterEntry(Generic[T]):
    """A value that a module entered under a name.

    Attributes:
        value: The value.
        module: The module that entered it.
        source: Where it comes from, as `Register.source` describes.
    """

    value: T
    module: str
    source: str

    @property
    def ours(self) -> bool:
        """Whether it belongs to Sottovoce or sottovoce-papers, not to a plug-in."""
        return self.source in OUR_SOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterListing:
    """A name in a register.

    Attributes:
        name: The name.
        source: Where it comes from, as `Register.source` describes.
        problem: Why it cannot be used; None if it can.
    """

    name: str
    source: str
    problem: str | None = None


def is_ours(module: str) -> bool:
    """Return whether a module, given by its full name, belongs to the package `sottovoce`.

    False for `sottovoce_papers`.
    """
    return module.partition(".")[0] == OURS


class Register(Generic[T]):
    """All things of one kind, by name, with the plug-ins of other distributions.

    Args:
        kind: What one of them is called, such as "mechanism"; its plural names the entry points'
            group.
        package: The package of Sottovoce's own; all its modules are imported to find any of them.
        inside: The module to import where a member of `package` is itself a package.
        places: The module of each of Sottovoce's own by name, if only that module is to be
            imported.
        elsewhere: What to write instead of a name that other libraries use, by that name.
    """

    def __init__(
        self,
        kind: str,
        *,
        package: str | None = None,
        inside: str = "",
        places: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.group = f"{OURS}.{kind}s"
        self._package, self._inside, self._places = package, inside, dict(places or {})
        self._elsewhere = dict(elsewhere or {})
        self._entries: dict[str, RegisterEntry[T]] = {}
        self._problems: dict[str, str] = {}
        self._loading: EntryPoint | None = None
        self._complete = False
        self._importing = threading.RLock()

    def enter(self, name: str, value: T, *, module: str) -> None:
        """Enter a value under a name.

        Args:
            name: The name.
            value: What the name stands for.
            module: The module that defines it. The same module may replace its own entry.

        Raises:
            PluginError: Another module has entered the name.
        """
        if not is_ours(module):
            self._import_ours()
            if name in self._places:  # Sottovoce's own has the name, even if imported later.
                importlib.import_module(self._places[name])
        known, source = self._entries.get(name), self._source(name, module)
        if known is not None and known.module != module:
            raise self._taken(name, [known.source, source])
        self._entries[name] = RegisterEntry(value=value, module=module, source=source)

    def find(self, name: str) -> T:
        """Return what has this name; a plug-in of that name is imported.

        Args:
            name: The name.

        Returns:
            The value.

        Raises:
            UnknownNameError: No source claims the name; the message suggests a similar one, if any.
            PluginError: The plug-in does not work, or two sources claim the name.
            ModuleNotFoundError: Sottovoce's own of that name needs a package that is not installed.
        """
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
        """Return what has this name in Sottovoce or sottovoce-papers, without importing a plug-in.

        Args:
            name: The name.

        Returns:
            The value, or None if the name is unknown, a plug-in's or claimed twice, or if its
            module needs a package that is not installed; `find` raises the error that says which.
        """
        if not self.is_ours(name):
            return None
        try:
            return self.find(name)
        except (PluginError, ModuleNotFoundError):
            return None

    def is_ours(self, name: str) -> bool:
        """Return whether a name belongs to Sottovoce or sottovoce-papers; imports no plug-in.

        Args:
            name: The name.

        Returns:
            True if they alone claim the name; False if it is unknown or a plug-in claims it (too).
        """
        self._import_ours()
        claims = self._claims(name)
        return bool(claims) and all(source in OUR_SOURCES for source in claims)

    def ours(self) -> dict[str, T]:
        """Return everything of Sottovoce and sottovoce-papers that can be used here, by name.

        Returns:
            The values by name; those whose packages are not installed are left out. What Sottovoce
            itself has entered is there even if a plug-in claims its name too.
        """
        found = {name: self.find_ours(name) for name in self.names() if self.is_ours(name)}
        found |= {name: entry.value for name, entry in self._entries.items() if entry.ours}
        return {name: value for name, value in sorted(found.items()) if value is not None}

    def is_in_papers(self, name: str) -> bool:
        """Return whether installing sottovoce-papers would add this name.

        Args:
            name: The name.

        Returns:
            False if sottovoce-papers has no such name, or if the name is known already.
        """
        return name in _IN_PAPERS.get(self.group, ()) and name not in self.names()

    def unknown(self, name: str, known: Iterable[str] | None = None) -> UnknownNameError:
        """Return the error for an unknown name, with the nearest of the known names.

        Args:
            name: The name that was requested.
            known: The names to suggest; all names of the register if None.

        Returns:
            The error, to be raised by the caller. If sottovoce-papers has the name but is not
            installed, it says how to install it instead; for a name of other libraries, what to
            write.
        """
        if self.is_in_papers(name):
            return UnknownNameError(
                f"the {self.kind} '{name.removesuffix(':')}' comes with the package {PAPERS}, "
                f"which is not installed; install it: pip install {PAPERS}, or 'make install' in "
                "a checkout"
            )
        if name.lower() in self._elsewhere:
            return UnknownNameError(
                f"unknown {self.kind} '{name}'; write {self._elsewhere[name.lower()]}"
            )
        return UnknownNameError.among(self.kind, name, self.names() if known is None else known)

    def all_working(self) -> dict[str, T]:
        """Return everything that works, by name; `listed` tells what is wrong with the rest.

        All plug-ins are imported.

        Returns:
            The values by name, sorted. What Sottovoce itself has entered is there even if a plug-in
            claims its name too.
        """
        found = {}
        for one in self.listed():
            entry = self._entries.get(one.name)
            if entry is not None and (one.problem is None or entry.ours):
                found[one.name] = entry.value
        return found

    def imported(self) -> Mapping[str, T]:
        """Return what has been entered so far; imports Sottovoce's own modules, but no plug-in.

        Returns:
            The values by name.
        """
        self._import_ours()
        return {name: entry.value for name, entry in self._entries.items()}

    def names(self) -> list[str]:
        """Return every name that a source claims; imports no plug-in.

        Returns:
            The sorted names.
        """
        self._import_ours()
        return sorted({*self._entries, *self._places, *self._entry_points()})

    def listed(self) -> list[RegisterListing]:
        """Return every name with its source; imports plug-ins to see whether they work.

        Returns:
            A row for each name and source, sorted by name. `problem` is None where the name works;
            two sources of one name are a problem of both.
        """
        rows = []
        for name in self.names():
            problem = None
            try:
                self.find(name)
            except PluginError as error:
                problem = str(error)
            except ModuleNotFoundError as error:  # Sottovoce's own needs an optional package.
                if name not in self._places:
                    raise
                problem = f"needs {error.name}, which is not installed"
            rows += [
                RegisterListing(name=name, source=source, problem=problem)
                for source in self._claims(name)
            ]
        return rows

    def source(self, name: str) -> str:
        """Return where a name comes from.

        Args:
            name: A name that was entered.

        Returns:
            'sottovoce', 'sottovoce-papers', 'distribution NAME VERSION', 'an unnamed distribution'
            or 'module NAME'.

        Raises:
            KeyError: The name was not entered (yet).
        """
        return self._entries[name].source

    def sources(self, name: str) -> list[str]:
        """Return all sources that claim a name; imports no plug-in.

        Args:
            name: The name.

        Returns:
            The sources, in the form of `source`; none if the name is unknown.
        """
        self._import_ours()
        return self._claims(name)

    def describe_plugin(self, name: str) -> str | None:
        """Return a description of a plug-in for messages, or None if the name is Sottovoce's own.

        Args:
            name: A name that was entered.

        Returns:
            The kind, the name and the source; None for names of Sottovoce and sottovoce-papers.

        Raises:
            KeyError: The name was not entered (yet).
        """
        found = self._entries[name]
        return None if found.ours else f"plug-in {self.kind} '{name}' ({found.source})"

    def _taken(self, name: str, sources: list[str]) -> PluginError:
        return PluginError(
            f"two {self.kind}s claim the name '{name}': {' and '.join(sources)}; rename or "
            "uninstall one of them"
        )

    def _import_ours(self) -> None:
        if self._package is None:
            return
        with self._importing:  # Other threads wait until all names are there.
            if not self._complete:
                self._import_all()

    def _import_all(self) -> None:
        assert self._package is not None
        # Set first, so that a module that asks during its import does not start another pass.
        self._complete = True
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
        """Import a plug-in's module, which must enter the name of the entry point."""
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
                        f"module {entry_point.module} registers no {self.kind} '{name}'"
                    )
            finally:
                self._loading = before
        if name in self._problems:
            raise PluginError(
                f"the plug-in {self.kind} '{name}' ({_distribution(entry_point)}) cannot be used: "
                f"{self._problems[name]}; correct or uninstall it"
            )

    def _claims(self, name: str) -> list[str]:
        """Return the sources of all who claim a name."""
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


def plugin_names(group: str) -> list[str]:
    """Return the sorted names that installed distributions claim in a group of entry points.

    The group is such as "sottovoce.mechanisms". No plug-in is imported.
    """
    return sorted({one.name for one in _installed(group, tuple(sys.path))})


@lru_cache(maxsize=64)
def _installed(group: str, path: tuple[str, ...]) -> tuple["EntryPoint", ...]:  # noqa: ARG001
    """Return the entry points of a group; `path` is in the cache's key because it affects them."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _distribution(entry_point: "EntryPoint") -> str:
    found = entry_point.dist
    of_papers = entry_point.module.partition(".")[0] == _PAPERS_PACKAGE
    if found and found.name.replace("_", "-") == PAPERS and of_papers:
        return f"distribution {PAPERS}" if entry_point.group in _CLAIMS else PAPERS
    return f"distribution {found.name} {found.version}" if found else "an unnamed distribution"
