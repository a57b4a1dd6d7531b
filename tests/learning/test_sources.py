"""Downloads from a server on this machine: verified or not kept, and explained when refused."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sottovoce.core.errors import DataError, OutputError, ParameterError
from sottovoce.learning import datasets
from sottovoce.learning.datasets import register
from sottovoce.learning.datasets.register import DataFile, DataSource, Digest, data_folder, fetch

CONTENT = bytes(range(256)) * 3000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path in ("/moved", "/near"):
            self.send_response(302)
            self.send_header(
                "Location", "/whole" if self.path == "/near" else "ftp://127.0.0.1/whole"
            )
            self.end_headers()
            return
        if self.path not in ("/whole", "/short", "/unsized", "/mnist/whole"):
            self.send_error(404, "Not here")
            return
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000] if self.path == "/short" else CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def data_file(url: str, content: bytes = CONTENT) -> DataFile:
    digest = Digest(algorithm="sha256", hexadecimal=hashlib.sha256(content).hexdigest())
    return DataFile(path="sub/file.bin", url=url, digest=digest)


def test_a_download_is_verified_counted_and_left_under_its_name_alone(
    server: str, tmp_path: Path
) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch(
        data_file(f"{server}/whole"),
        tmp_path,
        on_bytes=lambda done, total: seen.append((done, total)),
    )
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file.bin"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) >= 3


def test_a_length_that_the_server_does_not_say_is_none(server: str, tmp_path: Path) -> None:
    totals: set[int | None] = set()
    fetch(data_file(f"{server}/unsized"), tmp_path, on_bytes=lambda _, total: totals.add(total))
    assert totals == {None}


def test_a_file_that_is_there_is_checked_and_not_downloaded(tmp_path: Path) -> None:
    target = tmp_path / "sub" / "file.bin"
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    assert fetch(data_file("https://nowhere.invalid/whole"), tmp_path) == target
    target.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match=r"file\.bin is damaged or of another version: its sha256"):
        fetch(data_file("https://nowhere.invalid/whole"), tmp_path)


@pytest.mark.parametrize(
    ("place", "content", "message"),
    [
        ("whole", b"other", "its sha256 digest is"),
        ("short", CONTENT, "the connection ended after 1000 of 768000 bytes"),
        ("absent", CONTENT, "Not here"),
    ],
)
def test_what_is_not_as_announced_is_refused_and_not_kept(
    place: str, content: bytes, message: str, server: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as refused:
        fetch(data_file(f"{server}/{place}", content), tmp_path)
    assert f"{server}/{place}" in str(refused.value)
    assert str(tmp_path / "sub" / "file.bin") in str(refused.value)
    assert list((tmp_path / "sub").iterdir()) == []


def test_no_one_listening_is_explained(server: str, tmp_path: Path) -> None:
    closed = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    closed.server_close()
    with pytest.raises(DataError, match=r"cannot download file\.bin from http.*SOTTOVOCE_DATA"):
        fetch(data_file(f"http://127.0.0.1:{closed.server_port}/whole"), tmp_path)


def test_a_server_is_not_followed_where_nothing_is_encrypted(server: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"from ftp://127.0.0.1/whole: only https is allowed"):
        fetch(data_file(f"{server}/moved"), tmp_path)
    assert fetch(data_file(f"{server}/near"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("url", ["http://example.org/f", "file:///etc/hostname", "ftp://a/b"])
def test_only_https_is_used(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only https is allowed"):
        fetch(data_file(url), tmp_path)


def test_without_a_digest_nothing_is_downloaded(tmp_path: Path) -> None:
    file = DataFile(path="a.npz", url="https://example.org/a.npz")
    assert not DataSource(files=(file,)).downloadable
    with pytest.raises(ParameterError, match="no verified download"):
        fetch(file, tmp_path)


def test_a_folder_that_cannot_be_made_is_explained(server: str, tmp_path: Path) -> None:
    (tmp_path / "sub").write_text("a file")
    with pytest.raises(OutputError, match="cannot create"):
        fetch(data_file(f"{server}/whole"), tmp_path)


def test_the_data_folder_is_the_argument_the_environment_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "sottovoce" / "data"
    monkeypatch.setenv("SOTTOVOCE_DATA", "/environment")
    assert data_folder() == Path("/environment")
    assert data_folder("~/argument") == Path.home() / "argument"


def test_absent_data_names_files_folder_and_url(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        datasets.load("fashion_mnist", np.random.default_rng(0), data_dir=tmp_path)
    message = str(refused.value)
    for words in ("t10k-labels-idx1-ubyte.gz", str(tmp_path), "https://", "data fetch"):
        assert words in message
    with pytest.raises(DataError, match="kaggle"):
        datasets.load("medical_mnist", np.random.default_rng(0), data_dir=tmp_path, download=True)


def test_a_load_that_may_download_reports_the_mirrors_refusal(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA_MIRROR", server)
    with pytest.raises(DataError, match=rf"{server}/mnist/train-images-idx3-ubyte\.gz: Not here"):
        datasets.load("mnist", np.random.default_rng(0), data_dir=tmp_path, download=True)
    assert register.address(DataFile(path="mnist/a b", url="https://x")) == f"{server}/mnist/a%20b"


def test_every_download_is_over_https_and_has_a_published_digest() -> None:
    names = [entry.name for entry in datasets.entries() if not entry.takes_argument]
    files = [file for name in names for file in _downloads(name)] + list(
        _downloads("medmnist:bloodmnist")
    )
    assert len(files) == 4 + 4 + 1 + 1 + 1
    for file in files:
        assert file.url is not None
        assert file.url.startswith("https://")
        assert file.digest is not None
        assert len(file.digest.hexadecimal) == {"md5": 32, "sha256": 64}[file.digest.algorithm]


def _downloads(name: str) -> tuple[DataFile, ...]:
    entry, argument = datasets.register.find(name)
    return register.downloads(entry.sources_of(argument))
