"""One register for everything that can be added: mechanisms, accountants, algorithms, attacks ...

    RECIPES: Register[Recipe] = Register("algorithm", package="sottovoce.federated.algorithms")

Our own are entered when their module is imported, and all modules of `package` are imported when
somebody asks. Those of other distributions are named by entry points: the group is
`sottovoce.<kinds>`, the entry point's name is the name of what its module enters.

    [project.entry-points."sottovoce.mechanisms"]
    whisper = "my_package.whisper"

A plug-in is imported when it is asked for, so one that is broken breaks nobody else. A name belongs
to one: whoever asks for a name that two claim gets an error that names both, and neither.
"""

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from sottovoce.core.errors import PluginError, UnknownNameError

T = TypeVar("T")

OURS = "sottovoce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[T]):
    """What a module entered under a name; `source` is 'sottovoce', or whose plug-in it is."""

    value: T
    module: str
    source: str

    @property
    def ours(self) -> bool:
        return self.source == OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A name in a register: where it is from, and what is wrong with it, if anything is."""

    name: str
    source: str
    problem: str | None = None


def is_ours(module: str) -> bool:
    """Whether a module belongs to this package."""
    return module.partition(".")[0] == OURS


class Register(Generic[T]):
    """Everything of one kind, by name; `kind` is a word for people, its plural names the group.

    Where one of ours is a folder, its module `inside` enters.
    """

    def __init__(self, kind: str, *, package: str, inside: str = "") -> None:
        self.kind = kind
        self.group = f"{OURS}.{kind}s"
        self._package, self._inside = package, inside
        self._entries: dict[str, Entry[T]] = {}
        self._problems: dict[str, str] = {}
        self._loading: EntryPoint | None = None
        self._complete = False

    def enter(self, name: str, value: T, *, module: str) -> None:
        """Enter what `module` defines; another module's name is refused."""
        if not is_ours(module):
            self._import_ours()
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
        if name not in self._entries:
            entry_point = self._entry_points().get(name)
            if not entry_point:
                raise UnknownNameError.among(self.kind, name, self.names())
            self._load(entry_point[0])
        return self._entries[name].value

    def ours(self) -> dict[str, T]:
        """Those of this package, by name."""
        self._import_ours()
        return {name: entry.value for name, entry in sorted(self._entries.items()) if entry.ours}

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
        return sorted({*self._entries, *self._entry_points()})

    def listed(self) -> list[Listed]:
        """Every name with its source; plug-ins are imported to see whether they work."""
        rows = []
        for name in self.names():
            problem = None
            try:
                self.find(name)
            except PluginError as error:
                problem = str(error)
            rows += [
                Listed(name=name, source=source, problem=problem) for source in self._claims(name)
            ]
        return rows

    def source(self, name: str) -> str:
        """Where a name that was found is from: 'sottovoce', or 'distribution NAME VERSION'."""
        return self._entries[name].source

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
        if self._complete:
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

    def _load(self, entry_point: EntryPoint) -> None:
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
        claims = [entry.source] if entry else []
        for one in self._entry_points().get(name, ()):
            if _distribution(one) not in claims:
                claims.append(_distribution(one))
        return claims

    def _source(self, name: str, module: str) -> str:
        if is_ours(module):
            return OURS
        for one in self._entry_points().get(name, ()):
            if module == one.module or module.startswith(f"{one.module}."):
                return _distribution(one)
        return _distribution(self._loading) if self._loading else f"module {module}"

    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for one in _installed(self.group, tuple(sys.path)):
            found.setdefault(one.name, []).append(one)
        return found


@lru_cache(maxsize=64)
def _installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:  # noqa: ARG001
    """The entry points of a group; what can be found depends on the path."""
    return tuple(entry_points(group=group))


def _distribution(entry_point: EntryPoint) -> str:
    found = entry_point.dist
    return f"distribution {found.name} {found.version}" if found else "an unnamed distribution"
