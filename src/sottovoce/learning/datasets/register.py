"""The register of data sets, and the lookup and download of their files.

A data set is a loader function with a decorator:

    @register("foo", summary="...", sources=(DataSource(files=(DataFile(path="foo.npz"),)),))
    def foo(request: LoadRequest) -> Dataset: ...

Put the file into `datasets/`, or list its module under the entry point group `sottovoce.datasets`
(see `core.registry`); nothing else changes. A name that ends in a colon, such as `npz:`, takes
what follows it as an argument.

Files are looked for in one folder: the argument `data_dir`, else $SOTTOVOCE_DATA, else
`sottovoce/data` in the user's cache folder. A file for which a source publishes a digest can be
downloaded. $SOTTOVOCE_DATA_MIRROR replaces the servers by one of your own, which must have the
files under the names that they have in the folder. Digests are checked for every server.
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
from sottovoce.core.files import explain_os_errors
from sottovoce.core.plugin_returns import ReturnCondition, with_checked_results
from sottovoce.core.registry import Register
from sottovoce.learning.datasets.dataset import Dataset

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 18
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

# Called with the number of bytes so far, and the length of the file if the server announces it.
OnBytes = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """A digest as the source publishes it; MD5 detects damage but not forgery.

    Attributes:
        algorithm: 'md5' or 'sha256'.
        hexadecimal: The digest in lower-case hex digits.
    """

    algorithm: Literal["md5", "sha256"]
    hexadecimal: str

    def check(self, found: str, what: str) -> None:
        """Refuse data with another digest; return nothing otherwise.

        Args:
            found: The digest of the data, in lower-case hex digits.
            what: The name of the data in the error.

        Raises:
            DataError: The digests differ.
        """
        if found != self.hexadecimal:
            raise DataError(
                f"{what} is damaged or of another version: its {self.algorithm} digest is {found}, "
                f"the published one is {self.hexadecimal}; delete any copy of it in the data "
                "folder and fetch it again, or set SOTTOVOCE_DATA_MIRROR to another server"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of a data set.

    Attributes:
        path: Its path in the data folder; a `*` in it matches one file or more.
        url: The address to download it from, if it can be downloaded.
        digest: The digest that is published for it. Only files with a digest are downloaded.
    """

    path: str
    url: str | None = None
    digest: Digest | None = None

    def found_in(self, folder: Path) -> list[Path]:
        """Return the existing files that match the path.

        Args:
            folder: The data folder.

        Returns:
            The paths, sorted; none if there is no such file or the folder cannot be read.
        """
        try:
            if "*" in self.path:
                return sorted(folder.glob(self.path))
            return [folder / self.path] if (folder / self.path).is_file() else []
        except OSError:  # The folder cannot be read.
            return []

    @property
    def downloadable(self) -> bool:
        """Whether the file has an address and a digest."""
        return self.url is not None and self.digest is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Files that together contain a whole data set; of several sources, one is enough.

    Attributes:
        files: The files, all of which are needed.
    """

    files: tuple[DataFile, ...]

    def found_in(self, folder: Path) -> list[Path] | None:
        """Return the paths of the files, if all of them exist.

        Args:
            folder: The data folder.

        Returns:
            The paths in the order of `files`, or None if a file is missing.
        """
        found = [file.found_in(folder) for file in self.files]
        return [path for paths in found for path in paths] if all(found) else None

    @property
    def downloadable(self) -> bool:
        """Whether all files can be downloaded."""
        return all(file.downloadable for file in self.files)


def data_folder(data_dir: Path | str | None = None) -> Path:
    """Return the folder in which data are looked for and to which they are downloaded.

    It is `data_dir`, else $SOTTOVOCE_DATA, else `sottovoce/data` in the user's cache folder. It
    need not exist, and is not created.
    """
    if chosen := data_dir or os.environ.get("SOTTOVOCE_DATA"):
        return Path(chosen).expanduser()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "sottovoce" / "data"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "sottovoce" / "data"


def first_found(sources: Sequence[DataSource], folder: Path) -> list[Path] | None:
    """Return the files of the first source that is complete in the folder; None if none is."""
    for source in sources:
        if found := source.found_in(folder):
            return found
    return None


def downloads(sources: Sequence[DataSource]) -> tuple[DataFile, ...]:
    """Return the files of the first source that can be downloaded whole; empty if there is none.

    A file can be downloaded if it has an address and a published digest. Whether it exists already
    is not looked at.
    """
    return next((source.files for source in sources if source.downloadable), ())


def fetch(file: DataFile, folder: Path, *, on_bytes: OnBytes | None = None) -> Path:
    """Download a file unless it exists, verify its digest, and return its path.

    A download that fails or has another digest leaves no file. An existing file is verified too,
    and never replaced.

    Args:
        file: The file.
        folder: The data folder, which is created if it does not exist.
        on_bytes: Is called with the bytes so far, and the length of the file or None if the server
            does not announce it.

    Raises:
        ParameterError: The file has no address or no published digest.
        DataError: The server cannot be reached, is neither https nor on this machine, or sends less
            than announced; or the digest is another one.
        OutputError: The file cannot be read or written.
    """
    target = folder / file.path
    if file.url is None or file.digest is None:
        raise ParameterError(f"{file.path} has no verified download; put it into {folder} yourself")
    if target.is_file():
        with explain_os_errors("read", target), target.open("rb") as content:
            found = hashlib.file_digest(content, file.digest.algorithm).hexdigest()
        file.digest.check(found, str(target))
        return target
    with explain_os_errors("create", target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    with explain_os_errors("write", target):
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
    """Write what the server sends; refuse it if its digest is not the published one."""
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
    """Return the URL of a file: below $SOTTOVOCE_DATA_MIRROR if that is set, else its own.

    Without either the URL is empty.
    """
    if mirror := os.environ.get("SOTTOVOCE_DATA_MIRROR"):
        return f"{mirror.rstrip('/')}/{urllib.parse.quote(file.path)}"
    return file.url or ""


def _check_encrypted(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise DataError(
        f"refused to download from {url}: only https is allowed; set SOTTOVOCE_DATA_MIRROR to an "
        "https address"
    )


class _EncryptedRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows redirects only to https addresses."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request to the new address, or raise DataError if it is not https."""
        try:
            _check_encrypted(newurl)
        except DataError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _chunks(url: str, target: Path) -> Iterator[tuple[bytes, int | None]]:
    """Yield the content in pieces, with its total length if known; raise DataError if it fails."""
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
            error.close()  # The error is also the response, which must be closed.
        raise _unreachable(url, target, getattr(error, "reason", None) or error) from None


def _piece(response: Any) -> bytes:
    piece: bytes = response.read(CHUNK_BYTES)
    return piece


def _unreachable(url: str, target: Path, reason: object) -> DataError:
    return DataError(
        f"cannot download {target.name} from {url}: {reason}; get it elsewhere and put it at "
        f"{target}, or set SOTTOVOCE_DATA to a folder that has it"
    )


def missing_data_error(
    name: str, sources: Sequence[DataSource], folder: Path, remedy: str
) -> DataError:
    """Return the error for missing data: which files, in which folder, and how to get them."""
    wanted = " or ".join(", ".join(file.path for file in source.files) for source in sources)
    if files := downloads(sources):
        where = address(files[0]).rpartition("/")[0]
        fetching = f"fetch it with 'sottovoce data fetch {name}' (from {where})"
        remedy = f"{fetching}; {remedy}" if remedy else fetching
    return DataError(
        f"dataset '{name}' is not in {folder}: it needs {wanted}; set SOTTOVOCE_DATA or data_dir "
        "to a folder that has it" + (f", or {remedy}" if remedy else "")
    )


Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """How to read a csv file.

    Columns are referred to by name, or by number from 0 if there is no header.

    Attributes:
        header: Whether the first row has the names of the columns.
        label_columns: The columns of the label. Default: the last column that is neither the
            owner's nor ignored. Several columns are several numbers to predict.
        label: Whether the label is a class ("class") or numbers to predict ("number").
        classes: The public list of classes. Default: the classes that occur in the file.
        owner_column: The column that names the owner of a row, if there is one.
        bounds: Public bounds (low, high) of features, which are then mapped to [-1/2, 1/2]; a value
            outside them is an error. The name "*" gives bounds for every feature without its own.
            Features without bounds are not scaled.
        test_fraction: The fraction of rows that is held out as test data.
        decimal: The decimal separator of numbers, "." or ",".
        missing: Whether a row with a missing cell is an error ("refuse") or left out ("skip"). With
            "skip" the number of remaining rows becomes public.
        ignore_columns: Columns that are not used as features.
        categories: For features of words, the public list of words. Such a feature becomes one
            zero-or-one value for each word, all zero for any other word.

    Raises:
        ParameterError: An option is outside its range, or two of them contradict each other.
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
            raise ParameterError(f"decimal must be '.' or ',', got {self.decimal!r}")
        for name, words in self.categories.items():
            if not words or len(set(words)) < len(words):
                raise ParameterError(
                    f"categories of '{name}' must be a list of at least one word, all different"
                )
            if name in self.bounds:
                raise ParameterError(
                    f"'{name}' has both categories and bounds, but bounds are for numbers; remove "
                    "one of them"
                )
        parameter_rules.inner_fraction("test_fraction", self.test_fraction)
        for name, (low, high) in self.bounds.items():
            if not (low < high and math.isfinite(high - low)):
                raise ParameterError(
                    f"bounds of '{name}' must be finite and low < high, got ({low}, {high})"
                )
        if self.label == "class" and len(self.label_columns) > 1:
            raise ParameterError(
                f"a class label must be one column, got {len(self.label_columns)}; name one "
                "column, or set label = 'number'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What a loader is given.

    Attributes:
        name: The name of the data set, with its argument.
        argument: What follows the colon in the name; empty if the data set takes no argument.
        paths: The files, in the order of the source; empty if the data set has no sources.
        folder: The data folder.
        generator: The source of randomness for a split.
        csv: How to read csv files.
    """

    name: str
    argument: str
    paths: tuple[Path, ...]
    folder: Path
    generator: np.random.Generator
    csv: CsvOptions


Loader = Callable[[LoadRequest], Dataset]
SourcesOf = Callable[[str], tuple[DataSource, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry:
    """A registered data set.

    Attributes:
        name: Its name, which ends in a colon if it takes an argument.
        summary: One line about the data, for lists.
        placeholder: What stands for its argument in lists, such as PATH.
        loader: The function that loads it.
        sources_of: A function from the argument to the sources of its files; any one is enough.
        remedy: Where to get the files if they cannot be downloaded.
    """

    name: str
    summary: str
    placeholder: str
    loader: Loader
    sources_of: SourcesOf
    remedy: str

    @property
    def takes_argument(self) -> bool:
        """Whether an argument follows the name."""
        return self.name.endswith(":")


DATASETS: Register[DatasetEntry] = Register("dataset", package="sottovoce.learning.datasets")


def _is_finite_dataset(value: object) -> bool:
    return isinstance(value, Dataset) and all(
        np.isfinite(features).all() for features in (value.train_features, value.test_features)
    )


_RETURNS = ReturnCondition(
    what="a sottovoce.learning.Dataset whose features are finite", fits=_is_finite_dataset
)


def register(
    name: str,
    *,
    summary: str,
    sources: Sequence[DataSource] | SourcesOf = (),
    placeholder: str = "",
    remedy: str = "",
) -> Callable[[Loader], Loader]:
    """Return a decorator that registers a loader.

    Args:
        name: The name of the data set. One that ends in a colon takes an argument.
        summary: One line about the data, for lists.
        sources: Where its files are, or a function from the argument to that; empty if it needs no
            files of the data folder.
        placeholder: What stands for the argument in lists, such as PATH.
        remedy: Where to get the files if they cannot be downloaded, as a clause in the imperative.

    Returns:
        The decorator.

    Raises:
        PluginError: When the decorator is applied: another module has registered the name.
    """
    fixed = () if callable(sources) else tuple(sources)

    def enter(loader: Loader) -> Loader:
        entry = DatasetEntry(
            name=name,
            summary=summary,
            placeholder=placeholder,
            loader=with_checked_results(DATASETS, name, loader, _RETURNS),
            sources_of=sources if callable(sources) else lambda _: fixed,
            remedy=remedy,
        )
        DATASETS.enter(name, entry, module=loader.__module__)
        return loader

    return enter


def entries() -> tuple[DatasetEntry, ...]:
    """Return every registered data set that can be imported, sorted by name."""
    return tuple(DATASETS.all_working().values())


def find(name: str) -> tuple[DatasetEntry, str]:
    """Return the registered data set of a name, and the argument after the name's colon.

    Args:
        name: A name as in a spec, such as 'digits' or 'csv:PATH'.

    Returns:
        The data set, which is not loaded, and the argument; empty if there is no colon.

    Raises:
        UnknownNameError: There is none; the error suggests a similar name, if any.
        ParameterError: The argument is missing.
        PluginError: The data set is a plug-in's that does not work, or two sources claim the name.
    """
    head, colon, argument = name.partition(":")
    if head + colon not in DATASETS.names():
        known = [entry.name + entry.placeholder for entry in entries()]
        if DATASETS.is_in_papers(head + colon):
            raise DATASETS.unknown(head + colon)
        raise UnknownNameError.among("dataset", name, known)
    entry = DATASETS.find(head + colon)
    if entry.takes_argument and not argument:
        raise ParameterError(
            f"dataset '{name}' needs an argument after the colon; write "
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
    """Load a data set.

    Args:
        name: The name of a registered data set, such as 'digits' or 'csv:PATH'.
        generator: The source of randomness for the test split, if there is no official one.
        data_dir: The folder of the files; see `data_folder`.
        download: Whether to download missing files that have a published digest.
        csv: How to read the file, for 'csv:PATH'.
        on_bytes: A function that is called with the bytes so far, and the length of the file or
            None, during a download.

    Returns:
        Training and test data.

    Raises:
        UnknownNameError: There is no such data set, or no such column in the csv file.
        ParameterError: The name lacks its argument, or has one that is not valid.
        DataError: Files are missing or damaged, or cannot be downloaded; the error says what to do.
        OutputError: A download cannot be written.
        PluginError: A plug-in's loader cannot be imported, or does not return finite data.

    Examples:
        >>> import numpy as np
        >>> data = load("blobs:100x3x2", np.random.default_rng(0))
        >>> data.train_features.shape, data.test_features.shape
        ((80, 3), (20, 3))
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
        raise missing_data_error(name, sources, folder, entry.remedy)
    request = LoadRequest(
        name=name,
        argument=argument,
        paths=tuple(found or ()),
        folder=folder,
        generator=generator,
        csv=csv or CsvOptions(),
    )
    return entry.loader(request)


def check_here(name: str, data_dir: Path | str | None = None) -> None:
    """Raise DataError if the files of a data set are not on this machine; download nothing.

    A data set without sources passes, also 'csv:PATH' and the like, whose files are not looked at.
    An unknown name raises UnknownNameError.
    """
    entry, argument = find(name)
    folder, sources = data_folder(data_dir), entry.sources_of(argument)
    if sources and first_found(sources, folder) is None:
        raise missing_data_error(name, sources, folder, entry.remedy)


def files_to_fetch(name: str, data_dir: Path | str | None = None) -> tuple[DataFile, ...]:
    """Return the files that `fetch` can download for a data set, also those that exist already.

    Returns:
        The files; none if the data set needs none, or is complete here without a download.

    Raises:
        DataError: The data set is missing and offers no verified download.
        UnknownNameError: There is no such data set.
    """
    entry, argument = find(name)
    sources, folder = entry.sources_of(argument), data_folder(data_dir)
    files = downloads(sources)
    if sources and not files and first_found(sources, folder) is None:
        raise missing_data_error(name, sources, folder, entry.remedy)
    return files


def where_found(name: str, data_dir: Path | str | None = None) -> list[Path] | None:
    """Return the files of a data set in the data folder, of its first source that is complete.

    The list is empty if the data set has no sources, as 'digits' and 'csv:PATH'; None if no source
    is complete. An unknown name raises UnknownNameError.
    """
    entry, argument = find(name)
    sources = entry.sources_of(argument)
    return first_found(sources, data_folder(data_dir)) if sources else []
