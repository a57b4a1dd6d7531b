import builtins
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.learning import models
from sottovoce.learning.models import InputShape


class Counting(nn.Module):
    """Keeps a statistic of what it has seen, without any normalisation layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.seen: Tensor

    def forward(self, features: Tensor) -> Tensor:
        self.seen += len(features)
        outputs: Tensor = self.linear(features)
        return outputs


def drawn(input_shape: InputShape, num_outputs: int, gain: float = 1.0) -> nn.Module:
    module = nn.Linear(input_shape[0], num_outputs)
    nn.init.orthogonal_(module.weight, gain=gain)
    return module


def wide(input_shape: InputShape, num_outputs: int) -> nn.Module:
    return nn.Linear(input_shape[0], num_outputs + 1)


def narrow(input_shape: InputShape, num_outputs: int) -> nn.Module:
    return nn.Linear(input_shape[0] + 1, num_outputs)


def counting(input_shape: InputShape, num_outputs: int) -> nn.Module:
    return Counting()


def normed(input_shape: InputShape, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def text(input_shape: InputShape, num_outputs: int) -> str:
    return "module"


def failing(input_shape: InputShape, num_outputs: int, error: str = "KeyError") -> nn.Module:
    raise getattr(builtins, error)("no such\nlayer")


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("users_package")
    for factory in (drawn, wide, narrow, counting, normed, text, failing):
        setattr(module, factory.__name__, factory)
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_package", module)


def create(function: str, seed: int = 0, **arguments: Any) -> nn.Module:
    model = models.UserModule(factory=f"users_package:{function}", arguments=arguments)
    return models.create(model, (4,), 3, np.random.default_rng(seed))


def test_the_factory_gets_its_arguments_and_keeps_its_own_initial_weights() -> None:
    weight = next(create("drawn", gain=2.0).parameters()).detach()
    torch.testing.assert_close(weight @ weight.T, 4.0 * torch.eye(3))
    assert not torch.equal(weight, next(create("drawn", seed=1, gain=2.0).parameters()))


def test_initialize_refers_to_create() -> None:
    model = models.UserModule(factory="users_package:drawn")
    module = models.build(model, (4,), 3)
    with pytest.raises(ParameterError, match=r"models\.create"):
        models.initialize(model, module, np.random.default_rng(0))


@pytest.mark.parametrize("path", ["", "users_package", "users_package:", "a/b.py:f", ":f", "a:b:c"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ParameterError, match=r"package\.module:function"):
        models.UserModule(factory=path)


@pytest.mark.parametrize("name", ["input_shape", "num_outputs"])
def test_arguments_that_every_factory_gets_cannot_be_given(name: str) -> None:
    with pytest.raises(ParameterError, match=f"'{name}'.*remove it"):
        models.UserModule(factory="users_package:drawn", arguments={name: 1})


def test_a_package_that_is_not_there_is_named() -> None:
    model = models.UserModule(factory="no_such_package_here.nets:net")
    with pytest.raises(ParameterError, match=r"no_such_package_here.*PYTHONPATH"):
        models.build(model, (4,), 3)


def test_a_misspelt_function_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'drawn'"):
        create("drwan")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("number", {}, "has type int, not function"),
        ("drawn", {"gian": 1.0}, "unexpected keyword argument 'gian'"),
        ("failing", {}, r"'users_package:failing' raised KeyError: 'no such\\nlayer'; correct"),
        ("failing", {"error": "ValueError"}, "raised ValueError: no such layer; correct"),
        ("text", {}, r"returned str.*return the module itself"),
        ("wide", {}, r"returns shape \(2, 4\) for two samples, expected \(2, 3\)"),
        ("narrow", {}, r"fails on two samples of shape \(4,\)"),
        ("counting", {}, r"buffer 'seen'.*make it constant"),
        ("normed", {}, r"'1' \(BatchNorm1d\).*GroupNorm"),
    ],
)
def test_what_a_factory_may_get_wrong(
    function: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        create(function, **arguments)


def test_an_interrupt_in_a_factory_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        create("failing", error="KeyboardInterrupt")


def test_a_factory_is_found_in_the_current_folder_and_sys_path_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sizes_in_folder.py").write_text("EXTRA = 0\n")
    (tmp_path / "net_in_folder.py").write_text(
        "from torch import nn\n"
        "def net(input_shape, num_outputs):\n"
        "    from sizes_in_folder import EXTRA\n"  # also while it is called
        "    return nn.Linear(input_shape[0] + EXTRA, num_outputs)\n"
    )
    (tmp_path / "broken_in_folder.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    try:
        module = models.build(models.UserModule(factory="net_in_folder:net"), (4,), 3)
        assert isinstance(module, nn.Linear)
        assert sys.path == before
        with pytest.raises(ParameterError, match=r"raised ZeroDivisionError: .*correct broken_in"):
            models.build(models.UserModule(factory="broken_in_folder:net"), (4,), 3)
        assert sys.path == before
    finally:
        for name in ("net_in_folder", "sizes_in_folder"):
            sys.modules.pop(name, None)


SCRIPT = """
import multiprocessing
import sys
from sottovoce.learning import models

def build():
    models.build(models.UserModule(factory="net_in_folder:net"), (4,), 3)

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=build)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""


@pytest.mark.slow
def test_a_spawned_worker_finds_the_factory_in_the_current_folder_too(tmp_path: Path) -> None:
    """The script lies elsewhere, as the console script does, and workers are those of sweeps."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "net_in_folder.py").write_text(
        "from torch import nn\n"
        "def net(input_shape, num_outputs):\n"
        "    return nn.Linear(input_shape[0], num_outputs)\n"
    )
    (elsewhere / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(elsewhere / "script.py")],
        cwd=here,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
