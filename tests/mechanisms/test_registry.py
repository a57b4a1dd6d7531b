import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sottovoce.errors import ParameterError, UnknownNameError
from sottovoce.mechanisms import registry


def test_an_unknown_mechanism_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown mechanism 'gausian'.*'gaussian'"):
        registry.find("gausian")


def test_two_mechanisms_cannot_claim_one_name() -> None:
    example = registry.find("gaussian")
    decorate = registry.register(
        "gaussian", summary="", examples=[{}], example_domain=example.example_domain
    )
    with pytest.raises(ParameterError, match="two mechanisms claim"):
        decorate(type("Impostor", (), {}))


def test_a_plug_in_outside_the_package_is_found_through_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "whisper.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from sottovoce.domains import L2Ball
            from sottovoce.mechanisms.gaussian import Gaussian
            from sottovoce.mechanisms.registry import register

            @register("whisper", summary="a toy", examples=[{"noise_multiplier": 1.0}],
                      example_domain=L2Ball(dimension=2, radius=1.0))
            @dataclass(frozen=True, slots=True, kw_only=True)
            class Whisper(Gaussian):
                pass
            """
        )
    )
    metadata = tmp_path / "whisper-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: whisper\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sottovoce.mechanisms]\nwhisper = whisper\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sottovoce.mechanisms import registry\n"
        "print([r.kind for r in registry.registrations()])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "'whisper'" in found.stdout
