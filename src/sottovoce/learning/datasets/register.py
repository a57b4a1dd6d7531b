"""The register of datasets, one decorator on a loader, and where their files come from.

    @register("foo", summary="...", sources=(Source(files=(DataFile(path="foo.npz"),)),))
    def foo(request: Request) -> Dataset: ...

Drop the file into `datasets/`, or name its module under the entry point group `sottovoce.datasets`
(see `core.registry`); nothing else changes. A name that ends in a colon, such as `npz:`, takes
what follows it as an argument.

Files are looked for in one folder: the argument `data_dir`, else $SOTTOVOCE_DATA, else
`sottovoce/data` in the user's cache folder. What a source publishes a digest for can be downloaded;
$SOTTOVOCE_DATA_MIRROR replaces the servers by one of the user's own, which has the files under the
names they have in the folder. Digests are checked whatever the server.
"""

import contextlib
import hashlib
import http.client
import math
import os
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import DataError, ParameterError, UnknownNameError
from sottovoce.core.files import explained
from sottovoce.core.plugin_returns import Returns, held
from sottovoce.core.registry import Register
from sottovoce.learning.datasets.dataset import Dataset

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 18
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

# Bytes so far, and of the whole file if the server says.
OnBytes = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A digest as the source publishes it. MD5 finds damage; it is no proof against forgery."""

    algorithm: Literal["md5", "sha256"]
    hexadecimal: str

    def check(self, found: str, what: str) -> None:
        if found != self.hexadecimal:
            raise DataError(
                f"{what} is damaged or another version: its {self.algorithm} digest is {found}, "
                f"the published one is {self.hexadecimal}; delete it and fetch it again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file by its path in the data folder; a `*` in the path stands for one file or more.

    With `url` and `digest` it can be downloaded.
    """

    path: str
    url: str | None = None
    digest: Digest | None = None

    def found_in(self, folder: Path) -> list[Path]:
        try:
            if "*" in self.path:
                return sorted(folder.glob(self.path))
            return [folder / self.path] if (folder / self.path).is_file() else []
        except OSError:  # a folder that may not be looked into
            return []

    @property
    def downloadable(self) -> bool:
        return self.url is not None and self.digest is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Files that together hold a dataset; a dataset may have several such sources."""

    files: tuple[DataFile, ...]

    def found_in(self, folder: Path) -> list[Path] | None:
        """The files' places, in order; None unless all are there."""
        found = [file.found_in(folder) for file in self.files]
        return [path for paths in found for path in paths] if all(found) else None

    @property
    def downloadable(self) -> bool:
        return all(file.downloadable for file in self.files)


def data_folder(data_dir: Path | str | None = None) -> Path:
    """The folder that data is looked for in and downloaded to."""
    if chosen := data_dir or os.environ.get("SOTTOVOCE_DATA"):
        return Path(chosen).expanduser()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "sottovoce" / "data"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "sottovoce" / "data"


def first_found(sources: Sequence[Source], folder: Path) -> list[Path] | None:
    """The files of the first source that is wholly there."""
    for source in sources:
        if found := source.found_in(folder):
            return found
    return None


def downloads(sources: Sequence[Source]) -> tuple[DataFile, ...]:
    """The files to download, none if no source offers a verified download."""
    return next((source.files for source in sources if source.downloadable), ())


def fetch(file: DataFile, folder: Path, *, on_bytes: OnBytes | None = None) -> Path:
    """The file in `folder`, verified: downloaded unless it is there. Whole, or not there at all."""
    target = folder / file.path
    if file.url is None or file.digest is None:
        raise ParameterError(f"{file.path} has no verified download; put it into {folder} yourself")
    if target.is_file():
        with explained("read", target), target.open("rb") as content:
            found = hashlib.file_digest(content, file.digest.algorithm).hexdigest()
        file.digest.check(found, str(target))
        return target
    with explained("create", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    with explained("write", target):
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as content:
                _copy(file, file.digest, content, target, on_bytes)
                content.flush()
                os.fsync(content.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    return target


def _copy(
    file: DataFile, digest: Digest, content: Any, target: Path, on_bytes: OnBytes | None
) -> None:
    """Write what the server sends; refused unless the digest is the published one."""
    url = address(file)
    hashed = hashlib.new(digest.algorithm, usedforsecurity=False)
    done, total = 0, None
    for chunk, total in _chunks(url, target):
        content.write(chunk)
        hashed.update(chunk)
        done += len(chunk)
        if on_bytes is not None:
            on_bytes(done, total)
    if total is not None and done != total:
        raise _unreachable(url, target, f"the connection ended after {done} of {total} bytes")
    digest.check(hashed.hexdigest(), f"what {url} sent for {target}")


def address(file: DataFile) -> str:
    """The URL of a file, at the mirror if there is one."""
    if mirror := os.environ.get("SOTTOVOCE_DATA_MIRROR"):
        return f"{mirror.rstrip('/')}/{urllib.parse.quote(file.path)}"
    return file.url or ""


def _check_encrypted(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise DataError(f"refused to download from {url}: only https is used; correct the mirror's URL")


class _EncryptedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to where only https leads."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        try:
            _check_encrypted(newurl)
        except DataError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _chunks(url: str, target: Path) -> Iterator[tuple[bytes, int | None]]:
    """The content in pieces, with its whole length if known; a network's failure is explained."""
    _check_encrypted(url)
    opener = urllib.request.build_opener(_EncryptedRedirects)
    request = urllib.request.Request(url, headers={"User-Agent": "sottovoce"})  # noqa: S310  (only https, checked above)
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            while chunk := _piece(response):
                yield chunk, total
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer, too
        raise _unreachable(url, target, getattr(error, "reason", None) or error) from None


def _piece(response: Any) -> bytes:
    piece: bytes = response.read(CHUNK_BYTES)
    return piece


def _unreachable(url: str, target: Path, reason: object) -> DataError:
    return DataError(
        f"cannot download {target.name} from {url}: {reason}; get it elsewhere and put it at "
        f"{target}, or set SOTTOVOCE_DATA to a folder that has it"
    )


def absent(name: str, sources: Sequence[Source], folder: Path, remedy: str) -> DataError:
    """The error for data that is nowhere: which files, which folder, and how to get them."""
    wanted = " or ".join(", ".join(file.path for file in source.files) for source in sources)
    if files := downloads(sources):
        where = address(files[0]).rpartition("/")[0]
        fetching = f"fetch it with 'sottovoce data fetch {name}' (from {where})"
        remedy = f"{fetching}; {remedy}" if remedy else fetching
    return DataError(
        f"dataset '{name}' is not in {folder}: it needs {wanted}; {remedy}, or set SOTTOVOCE_DATA "
        "or data_dir to a folder that has it"
    )


Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """How to read a csv file: columns go by name, or by number from 0 where there is no header.

    `label_columns` are the label [the last column]; several are several numbers to predict.
    `label` says whether that is a class or numbers. `classes` is the public list of classes; left
    out, they are what the file has. A feature with public `bounds` (low, high) is mapped to
    [-1/2, 1/2]; the name "*" bounds every feature that has none of its own; a feature without any
    is left as it is. A feature with `categories`, the public list of its words, becomes a zero or
    one for each of them, all zero for any other word; `ignore_columns` are no features. `decimal`
    is the decimal sign of numbers. A row without one of its cells is an error, or left out with
    missing = "skip"; how many are left is public then.
    """

    header: bool = True
    label_columns: tuple[str, ...] = ()
    label: Literal["class", "number"] = "class"
    classes: tuple[str, ...] = ()
    owner_column: str | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    test_fraction: float = 0.2
    decimal: str = "."
    missing: Literal["refuse", "skip"] = "refuse"
    ignore_columns: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise ParameterError(f"the decimal sign is a point or a comma, got {self.decimal!r}")
        for name, words in self.categories.items():
            if not words or len(set(words)) < len(words):
                raise ParameterError(f"categories of '{name}' must be words, each of them once")
            if name in self.bounds:
                raise ParameterError(f"'{name}' has categories, so bounds of it mean nothing")
        parameter_rules.inner_fraction("test_fraction", self.test_fraction)
        for name, (low, high) in self.bounds.items():
            if not (low < high and math.isfinite(high - low)):
                raise ParameterError(
                    f"bounds of '{name}' must be finite, the low one first, got ({low}, {high})"
                )
        if self.label == "class" and len(self.label_columns) > 1:
            raise ParameterError(
                f"a class is one column, got {len(self.label_columns)}; name one, or set "
                "label = 'number'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a loader is given: its files, in the order of the source, and how to split them.

    `argument` is what follows the colon in the dataset's name, if that takes one.
    """

    name: str
    argument: str
    paths: tuple[Path, ...]
    folder: Path
    generator: np.random.Generator
    csv: CsvOptions


Loader = Callable[[Request], Dataset]
SourcesOf = Callable[[str], tuple[Source, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One registered dataset. `placeholder` stands for its argument in lists: NAME, PATH."""

    name: str
    summary: str
    placeholder: str
    loader: Loader
    sources_of: SourcesOf
    remedy: str

    @property
    def takes_argument(self) -> bool:
        return self.name.endswith(":")


DATASETS: Register[Entry] = Register("dataset", package="sottovoce.learning.datasets")


def _is_finite_dataset(value: object) -> bool:
    return isinstance(value, Dataset) and all(
        np.isfinite(features).all() for features in (value.train_features, value.test_features)
    )


_RETURNS = Returns(
    what="a sottovoce.learning.Dataset whose features are finite", fits=_is_finite_dataset
)


def register(
    name: str,
    *,
    summary: str,
    sources: Sequence[Source] | SourcesOf = (),
    placeholder: str = "",
    remedy: str = "",
) -> Callable[[Loader], Loader]:
    """Decorator that enters a loader; no `sources` means that it needs no file of the data folder.

    `remedy` says where to get the files if they cannot be downloaded.
    """
    fixed = () if callable(sources) else tuple(sources)

    def enter(loader: Loader) -> Loader:
        entry = Entry(
            name=name,
            summary=summary,
            placeholder=placeholder,
            loader=held(DATASETS, name, loader, _RETURNS),
            sources_of=sources if callable(sources) else lambda _: fixed,
            remedy=remedy,
        )
        DATASETS.enter(name, entry, module=loader.__module__)
        return loader

    return enter


def entries() -> tuple[Entry, ...]:
    """Every registered dataset that works, by name."""
    return tuple(DATASETS.every().values())


def find(name: str) -> tuple[Entry, str]:
    """The dataset called `name`, and the argument after its colon; or an error with the nearest."""
    head, colon, argument = name.partition(":")
    if head + colon not in DATASETS.names():
        known = [entry.name + entry.placeholder for entry in entries()]
        if DATASETS.is_in_papers(head + colon):
            raise DATASETS.unknown(head + colon)
        raise UnknownNameError.among("dataset", name, known)
    entry = DATASETS.find(head + colon)
    if entry.takes_argument and not argument:
        raise ParameterError(
            f"dataset '{name}' needs {entry.placeholder} after the colon, as in "
            f"'{entry.name}{entry.placeholder}'"
        )
    return entry, argument


def load(
    name: str,
    generator: np.random.Generator,
    *,
    data_dir: Path | str | None = None,
    download: bool = False,
    csv: CsvOptions | None = None,
    on_bytes: OnBytes | None = None,
) -> Dataset:
    """The dataset called `name`; `generator` draws the test split if there is no official one.

    Files are looked for in `data_folder(data_dir)`. What is not there is downloaded if `download`
    allows it and its source publishes a digest; otherwise the error says what to do. `csv` is for
    the datasets 'csv:PATH'.
    """
    entry, argument = find(name)
    folder = data_folder(data_dir)
    sources = entry.sources_of(argument)
    found = first_found(sources, folder)
    if found is None and download:
        for file in downloads(sources):
            fetch(file, folder, on_bytes=on_bytes)
        found = first_found(sources, folder)
    if found is None and sources:
        raise absent(name, sources, folder, entry.remedy)
    request = Request(
        name=name,
        argument=argument,
        paths=tuple(found or ()),
        folder=folder,
        generator=generator,
        csv=csv or CsvOptions(),
    )
    return entry.loader(request)


def check_here(name: str, data_dir: Path | str | None = None) -> None:
    """Refuse a dataset whose files are not on this machine; download nothing."""
    entry, argument = find(name)
    folder, sources = data_folder(data_dir), entry.sources_of(argument)
    if sources and first_found(sources, folder) is None:
        raise absent(name, sources, folder, entry.remedy)


def files_to_fetch(name: str, data_dir: Path | str | None = None) -> tuple[DataFile, ...]:
    """The files that `fetch` can bring for a dataset; none if it needs none or has them elsewhere.

    A dataset that is absent and offers no verified download is an error that says where to get it.
    """
    entry, argument = find(name)
    sources, folder = entry.sources_of(argument), data_folder(data_dir)
    files = downloads(sources)
    if sources and not files and first_found(sources, folder) is None:
        raise absent(name, sources, folder, entry.remedy)
    return files


def where_found(name: str, data_dir: Path | str | None = None) -> list[Path] | None:
    """The files of a dataset in the data folder: none if it needs none, None if any is absent."""
    entry, argument = find(name)
    sources = entry.sources_of(argument)
    return first_found(sources, data_folder(data_dir)) if sources else []
