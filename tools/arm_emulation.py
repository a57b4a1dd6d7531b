"""Run tests of the C kernels on an emulated ARM processor: `make test-arm`.

    python tools/arm_emulation.py                     the tests of kernels and of what uses them
    python tools/arm_emulation.py tests/core -k sums  other arguments of pytest
    python tools/arm_emulation.py --compile           only compile (with clang, too, if there)

The extension is compiled for 64-bit ARM with a cross compiler, and an ARM Python runs the tests in
the emulator of QEMU. That Python, its libraries (Debian packages) and wheels of the dependencies
are downloaded once into build/arm, about 200 MB unpacked; their SHA-256 is checked against the
archive's index. Emulation shows that results are right, and says nothing about speed.
"""

import argparse
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
CACHE: Final = ROOT / "build" / "arm"
COMPILER: Final = "aarch64-linux-gnu-gcc"
EMULATOR: Final = "qemu-aarch64"
REMEDIES: Final = {
    COMPILER: "apt install gcc-aarch64-linux-gnu",
    EMULATOR: "apt install qemu-user",
    "dpkg-deb": "apt install dpkg",
}
TESTS: Final = (
    "tests/core/test_native.py",
    *(
        f"tests/mechanisms/kernels/test_{name}.py"
        for name in (
            *("close_calls", "family", "identical", "ladder_ends", "native_sums", "one_bit"),
            *("seeded", "table"),
        )
    ),
    "tests/mechanisms/test_packing.py",
    "tests/mechanisms/test_rotation.py",
    "tests/protocol/test_level_counts.py",
    "tests/protocol/test_rotation.py",
    "tests/protocol/test_server_sums.py",
)
FLAGS: Final = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Werror")
_LIMITED: Final = "-DPy_LIMITED_API=0x030B0000"
_ARCHIVE: Final = "https://deb.debian.org/debian"
_INDEX: Final = f"{_ARCHIVE}/dists/bookworm/main/binary-arm64/Packages.xz"
_PACKAGES: Final = (
    *("libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5"),
    *("libpython3.11-dev", "libpython3.11-minimal", "libpython3.11-stdlib", "libsqlite3-0"),
    *("libssl3", "libstdc++6", "libuuid1", "python3.11-minimal", "zlib1g"),
)
_WHEELS: Final = (
    *("numpy", "scipy", "cryptography", "pydantic", "typer", "rich"),
    *("mpmath", "hypothesis", "pytest", "pytest-xdist"),
)


def missing(*tools: str) -> str | None:
    """Return what must be installed for these tools, as a sentence; None if all are there."""
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if not absent:
        return None
    commands = ", ".join(REMEDIES[tool] for tool in absent)
    return f"{' and '.join(absent)} missing; install with: {commands}"


def compile_sources(folder: Path, *compiler: str, include: Path | None = None) -> list[Path]:
    """Compile every C file of the extension for ARM into `folder`, with warnings as errors.

    Raises:
        RuntimeError: The compiler refused a file, with what it said.
    """
    headers = include or Path(sysconfig.get_path("include"))
    sources = sorted((ROOT / "src" / "native").glob("*.c"))

    def compiled(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        options = (*FLAGS, _LIMITED, "-fPIC", f"-I{headers}")
        command = [*compiler, *options, "-c", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        return target

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(compiled, sources))


def compilers() -> list[tuple[str, ...]]:
    """Return the commands that compile for ARM here: gcc's, and clang's with gcc's headers."""
    clang = ("clang", "--target=aarch64-linux-gnu")
    return [(COMPILER,), *([clang] if shutil.which("clang") else [])]


def system_root() -> Path:
    """Return a folder with an ARM Python and its libraries, downloaded at the first call."""
    root = CACHE / "root"
    if root.exists():
        return root
    index = lzma.decompress(_fetched(_INDEX)).decode()
    records = [_fields(text) for text in index.split("\n\n") if text]
    known = {fields["Package"]: fields for fields in records}
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        unpacked = Path(folder) / "root"
        for name in _PACKAGES:
            content = _fetched(f"{_ARCHIVE}/{known[name]['Filename']}")
            if hashlib.sha256(content).hexdigest() != known[name]["SHA256"]:
                raise RuntimeError(f"the download of {name} is damaged; run this again")
            archive = Path(folder) / f"{name}.deb"
            archive.write_bytes(content)
            subprocess.run(["dpkg-deb", "-x", str(archive), str(unpacked)], check=True)
        unpacked.rename(root)
    return root


def wheels() -> Path:
    """Return a folder with the dependencies' ARM wheels, unpacked; downloaded at the first call."""
    target = CACHE / "wheels"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", f"{folder}/all"]
        command += ["--only-binary=:all:", "--implementation=cp", "--python-version=3.11"]
        command += ["--platform=manylinux2014_aarch64", "--platform=manylinux_2_28_aarch64"]
        command += ["-c", str(ROOT / "constraints.txt"), *_WHEELS]
        subprocess.run(command, check=True)
        Path(folder, "all").rename(target)
    return target


def link_package(tree: Path, root: Path) -> None:
    """Fill a folder with links to the package's sources, and the extension compiled for ARM."""
    package = tree / "sottovoce"
    package.mkdir(parents=True)
    for entry in (ROOT / "src" / "sottovoce").iterdir():
        if not entry.name.startswith("_native"):
            (package / entry.name).symlink_to(entry)
    include = root / "usr" / "include" / "python3.11"
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_sources(
            Path(folder), COMPILER, f"-I{root / 'usr' / 'include'}", include=include
        )
        library = package / "_native.abi3.so"
        subprocess.run(
            [COMPILER, "-shared", *map(str, objects), "-o", str(library), "-lm"], check=True
        )


def run_python(arguments: list[str]) -> int:
    """Run the ARM Python with these arguments and the package's sources; return its exit status."""
    root, dependencies = system_root(), wheels()
    with tempfile.TemporaryDirectory() as tree:
        link_package(Path(tree), root)
        path = [tree, dependencies, ROOT / "papers" / "src"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        python = str(root / "usr" / "bin" / "python3.11")
        command = [EMULATOR, "-L", str(root), python, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def run_tests(arguments: list[str]) -> int:
    """Run pytest on the emulated processor; without arguments, the tests of the kernels."""
    given = arguments or ["-m", "not slow", *TESTS]
    return run_python(["-m", "pytest", "-p", "no:cacheprovider", *given])


def _fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - https only, see above
        return bytes(answer.read())


def _fields(record: str) -> dict[str, str]:
    lines = (line.split(": ", 1) for line in record.split("\n") if ": " in line)
    return {name: value for name, value in lines if not name.startswith(" ")}


def _compile_only() -> None:
    for command in compilers():
        with tempfile.TemporaryDirectory() as folder:
            print(f"{command[0]}: {len(compile_sources(Path(folder), *command))} files compiled")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--compile", action="store_true", help="only compile")
    chosen, arguments = parser.parse_known_args()
    needed = [COMPILER] if chosen.compile else list(REMEDIES)
    if (said := missing(*needed)) is not None:
        print(said, file=sys.stderr)
        return 2
    if chosen.compile:
        _compile_only()
        return 0
    return run_tests(arguments)


if __name__ == "__main__":
    sys.exit(main())
