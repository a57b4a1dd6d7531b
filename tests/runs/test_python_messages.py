"""Errors of the Python API name its arguments and keys, and never options of a command."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from specs import CLIENT_LEVEL, small_table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sottovoce
from sottovoce.core.errors import SottovoceError

Y = np.arange(40) % 4
X = np.random.default_rng(1).normal(size=(40, 5)) + Y[:, None]
TARGET: dict[str, Any] = {"rounds": 2, "dimension": 10, "epsilon": 1.0, "delta": 1e-5}


def run(overrides: dict[str, Any] | None = None, **given: Any) -> Callable[[], Any]:
    table = small_table() | {"data": {"clients": 4}}
    changes = {"spec": table, "data": (X, Y), "overrides": overrides, **given}
    return lambda: sottovoce.simulate(**changes)


def client_run(**overrides: Any) -> Callable[[], Any]:
    table = small_table(**CLIENT_LEVEL) | {"data": {"clients": 4}}
    changed = {key.replace("__", "."): value for key, value in overrides.items()}
    return lambda: sottovoce.simulate(table, data=(X, Y), overrides=changed)


def calibrate(**changes: Any) -> Callable[[], Any]:
    return lambda: sottovoce.calibrate("gauss_hermite", **{"levels": 2, **TARGET, **changes})


def spend(**changes: Any) -> Callable[[], Any]:
    given = {"noise_multiplier": 1.0, "rounds": 1, "dimension": 5, "delta": 1e-5, **changes}
    return lambda: sottovoce.spend("gaussian", **given)


NO_MODEL = {key: value for key, value in small_table().items() if key != "model"}
NAN = np.where(X[3, 2] == X, np.nan, X)
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no epsilon": (run({"privacy.epsilon": 0.0}), "private=False"),
    "clip norm": (run({"privacy.clip_norm": 0.0}), "privacy.clip_norm"),
    "rounds": (run({"rounds": 0}), "'rounds'"),
    "key": (run({"privacy.epsilom": 1.0}), "did you mean 'epsilon'"),
    "mechanism": (run({"mechanism.kind": "gauss"}), "did you mean 'gaussian'"),
    "algorithm": (run({"algorithm.kind": "fedavgg"}), "did you mean 'fedavg'"),
    "strategy": (run({"algorithm.kind": "FedAdam"}), "server_optimizer = { kind = 'fedadam' }"),
    "clients": (run({"data.clients": 500}), "clients must be"),
    "no GPU": (run({"runtime.device": "cuda"}), "'cpu' or 'auto'"),
    "steps": (client_run(algorithm__local_steps=0), "algorithm.local_steps"),
    "batch": (
        client_run(algorithm__batch_size=500),
        "the 8 records of the largest client; lower",
    ),
    "no model": (
        run(spec=NO_MODEL),
        "'model' is missing; write it, or give simulate(..., model=MODULE)",
    ),
    "no data": (run(data=None), "'data.dataset' is missing; write it, or give simulate(..., data="),
    "words": (run(data=(X, np.array(["a", "b"] * 20))), "np.unique(y, return_inverse=True)"),
    "loss": (run(data=(X, Y), loss="squared_error", model=nn.Linear(5, 1)), "y.astype(float)"),
    "loader": (run(data=DataLoader(TensorDataset(*map(torch.tensor, (X, Y))))), "loader.dataset"),
    "temporary log": (run(log="tensorboard"), "give out=FOLDER"),
    "floats": (run(data=(X, Y.astype(float)), model=nn.Linear(5, 4)), "y.astype(int)"),
    "negative": (run(data=(X, Y - 1)), "start at 0 (give numbers to predict as floats)"),
    "NaN": (run(data=(NAN, Y)), "not finite"),
    "lengths": (run(data=(X, Y[:-1])), "'x' 40, 'y' 39"),
    "one row": (run(data=(X[:1], Y[:1])), "separate test data"),
    "a client without rows": (
        run(
            {"data.partition": {"kind": "by_owner"}, "data.clients": 5},
            data={"x": X, "y": Y, "owner": Y},
        ),
        "the partition 'by_owner' makes a client of each of the 4 owners",
    ),
    "module": (run(model=nn.Linear(6, 4)), "must take batches"),
    "resume": (run(resume=True), "give it as out"),
    "calibrate clip_norm": (calibrate(clip_norm=0.0), "clip_norm must be"),
    "calibrate epsilon": (calibrate(epsilon=0.0), "epsilon must be"),
    "calibrate delta": (calibrate(delta=2.0), "delta must lie"),
    "calibrate levels": (calibrate(levels=1), "levels must be"),
    "calibrate argument": (calibrate(clipping=1.0), "unknown argument of calibrate"),
    "spend rounds": (spend(rounds=0), "rounds must be"),
    "spend noise": (spend(noise_multiplier=0.0), "noise_multiplier must lie"),
    "spend clip_norm": (spend(clip_norm=-1.0), "clip_norm must be"),
    "server": (
        lambda: sottovoce.Server(sottovoce.calibrate("gaussian", **TARGET), clients="a"),
        "clients must be a list",
    ),
    "budget": (lambda: sottovoce.Budget(epsilon=0.0, delta=1e-5), "epsilon must be"),
}


@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_is_refused_in_the_words_of_the_caller(
    call: Callable[[], Any], expected: str
) -> None:
    with pytest.raises(SottovoceError) as caught:
        call()
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    assert "--" not in message.replace("--no-privacy (in Python private=False)", "")
