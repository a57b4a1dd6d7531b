"""The wheel is what strangers install: it must hold everything the source tree does."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_holds_templates_catalog_and_type_marker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*command, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("sottovoce-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for pattern in ("**/*.py", "**/*.html", "**/*.css", "**/*.js", "**/*.toml", "**/py.typed")
        for path in source.glob(pattern)
    }
    assert expected <= names
