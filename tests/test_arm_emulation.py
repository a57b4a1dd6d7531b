"""The extension on 64-bit ARM: it compiles everywhere, and its tests pass in an emulator."""

import shutil
from pathlib import Path

import arm_emulation
import pytest

ABSENT = arm_emulation.missing(arm_emulation.COMPILER)
CANNOT_RUN = arm_emulation.missing(*arm_emulation.REMEDIES)


@pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))
@pytest.mark.parametrize("compiler", arm_emulation.compilers(), ids=lambda command: command[0])
def test_every_file_compiles_for_arm_without_a_warning(
    tmp_path: Path, compiler: tuple[str, ...]
) -> None:
    assert len(arm_emulation.compile_sources(tmp_path, *compiler)) >= 12


def test_what_is_missing_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    said = arm_emulation.missing(*arm_emulation.REMEDIES)
    assert said is not None
    assert "qemu-aarch64" in said
    assert "apt install gcc-aarch64-linux-gnu" in said


@pytest.mark.slow
@pytest.mark.skipif(CANNOT_RUN is not None, reason=str(CANNOT_RUN))
def test_the_tests_of_kernels_pass_on_an_emulated_arm_processor() -> None:
    levels = "from sottovoce.core import native; assert native.levels()[1:] == ('portable', 'neon')"
    assert arm_emulation.run_python(["-c", levels]) == 0
    assert arm_emulation.run_tests([]) == 0
