"""Objectives, integer features and sequences, from the call to the result."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import sottovoce
from sottovoce.core.errors import ConfigError, DataError, ParameterError
from sottovoce.runs.spec import ModelSpec

VOCABULARY, LENGTH = 7, 5
TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, size=(60, LENGTH))
NUMBERS = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)


def table(level: str = "sample", **model: Any) -> dict[str, Any]:
    algorithm: dict[str, Any] = {"kind": "fedavg", "server_learning_rate": 1.0}
    if level == "client":
        algorithm |= {"local_steps": 2, "local_learning_rate": 0.5}
    return {
        "rounds": 2,
        "randomness": "seeded",
        "data": {"clients": 3},
        "model": {"kind": "linear", **model},
        "algorithm": algorithm,
        "privacy": {"level": level, "clip_norm": 1.0, "epsilon": 50.0, "delta": 1e-3},
        "mechanism": {"kind": "gaussian"},
    }


class Tagger(nn.Module):
    """Outputs for each position, or their mean over the positions."""

    def __init__(self, outputs: int, *, mean: bool, tokens: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 6)
        self.last = nn.Linear(6, outputs)
        self.mean = mean

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.embedding(tokens))
        return outputs.mean(dim=1) if self.mean else outputs


@pytest.mark.parametrize("level", ["sample", "client"])
def test_tokens_stay_whole_numbers_and_are_classified_as_sequences(level: str) -> None:
    labels = (TOKENS[:, 0] > 3).astype(int)
    run = sottovoce.simulate(table(level), model=Tagger(2, mean=True), data=(TOKENS, labels))
    assert set(run.metrics) == {"accuracy"}


@pytest.mark.parametrize("level", ["sample", "client"])
def test_a_class_for_each_position_is_learned_without_the_ignored_ones(level: str) -> None:
    labels = np.roll(TOKENS, -1, axis=1)
    labels[:, -1] = -100
    data = {"x": TOKENS, "y": labels, "num_classes": np.array(VOCABULARY + 1)}
    run = sottovoce.simulate(table(level), model=Tagger(8, mean=False), data=data)
    assert list(run.metrics) == ["token accuracy"]
    assert run.loss is not None
    assert 0.0 < run.loss < 5.0
    with pytest.raises(ParameterError, match=r"return \(samples, positions, num_outputs\)"):
        sottovoce.simulate(table(level), model=Tagger(8, mean=True), data=data)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (TOKENS.astype(np.float32) / 10, "takes whole numbers only"),
        (TOKENS + 1, "an embedding takes 0 to num_embeddings - 1"),
        (TOKENS - 1, "an embedding takes 0 to num_embeddings - 1"),
    ],
)
def test_features_that_an_embedding_does_not_take_are_refused_before_anything_is_charged(
    features: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as told:
        sottovoce.simulate(
            table(),
            model=Tagger(2, mean=True),
            data=(features, TOKENS[:, 0] % 2),
            out=tmp_path / "run",
        )
    assert str(VOCABULARY) not in str(told.value)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


def test_whole_numbers_become_floats_for_a_model_that_computes_with_them() -> None:
    counts, labels = TOKENS[:, :4], TOKENS[:, 0] % 2
    whole = sottovoce.simulate(table(), data=(counts, labels))
    floats = sottovoce.simulate(table(), data=(counts.astype(np.float64), labels))
    np.testing.assert_array_equal(whole.model, floats.model)


@pytest.mark.parametrize("loss", [None, "absolute_error", "huber"])
def test_a_regression_reports_r_squared_and_the_mean_absolute_error(loss: str | None) -> None:
    targets = 3.0 * NUMBERS[:, :2] + 1.0
    run = sottovoce.simulate(table(), data=(NUMBERS, targets), loss=loss)
    assert list(run.metrics) == ["R-squared", "mean absolute error"]
    assert run.to_dict()["metrics"] == run.metrics
    assert "R-squared" in str(run)
    assert run.accuracy == run.metrics["R-squared"]
    assert run.score == "R-squared"


def test_several_labels_of_a_sample_are_learned_and_scored_together() -> None:
    labels = (NUMBERS[:, :3] > 0).astype(int)
    run = sottovoce.simulate(
        table(loss="binary_cross_entropy"), data=(NUMBERS, labels), overrides={"rounds": 30}
    )
    assert list(run.metrics) == ["label accuracy", "micro F1"]
    assert run.metrics["label accuracy"] > 0.7
    for bad in (NUMBERS[:, :3], labels[:, 0], labels + 1):
        with pytest.raises(DataError, match=r"0 or 1, of shape \(rows, labels\)"):
            sottovoce.simulate(table(loss="binary_cross_entropy"), data=(NUMBERS, bad))


def weighted(outputs: Tensor, labels: Tensor) -> Tensor:
    return 2.0 * nn.functional.cross_entropy(outputs, labels, reduction="none")


def in_two(outputs: Tensor, labels: Tensor) -> Tensor:
    top = outputs.topk(2, dim=1).indices
    return (top == labels[:, None]).any(dim=1).float()


@pytest.mark.parametrize("level", ["sample", "client"])
def test_a_loss_and_a_metric_of_ones_own_replace_those_of_the_labels(level: str) -> None:
    labels = TOKENS[:, 0] % 3
    given: Any = {"data": (NUMBERS, labels), "overrides": {"privacy.clip_norm": 0.01}}
    own = sottovoce.simulate(table(level), loss=weighted, metric=in_two, **given)
    plain = sottovoce.simulate(table(level), **given)
    assert list(own.metrics) == ["in_two"]
    assert 0.0 < own.metrics["in_two"] <= 1.0
    assert own.loss == pytest.approx(2.0 * (plain.loss or 0.0), rel=0.05)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.functional.cross_entropy, "returns one number for 2 samples.*reduction='none'"),
        (lambda o, y: o.softmax(dim=0)[:, 0], "depends on the other samples"),
        (lambda o, y: o[:, 0] * (1.0 if o.sum() > 0 else 2.0), "torch.func.vmap"),
        (lambda o, y: o @ y, "the loss fails on two samples"),
        (lambda o, y: o[:, 0] * float("nan"), r"\[nan, nan\] before any training; make it finite"),
        ("absolute_error", "is for regression, and these labels are classification"),
        (3, "must be a function"),
    ],
)
def test_a_loss_that_gives_no_loss_for_each_sample_is_refused(loss: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        sottovoce.simulate(table(), data=(NUMBERS, TOKENS[:, 0] % 2), loss=loss)


def test_a_metric_that_is_a_mean_is_refused_in_its_own_words() -> None:
    def mean(outputs: Any, labels: Any) -> Any:
        return (outputs.argmax(dim=1) == labels).float().mean()

    with pytest.raises(ParameterError, match="leave out the mean over samples"):
        sottovoce.simulate(table(), data=(NUMBERS, TOKENS[:, 0] % 2), metric=mean)


def test_a_module_for_several_labels_without_their_loss_is_told_which_one() -> None:
    labels = TOKENS[:, :3] % 2
    module = nn.Linear(NUMBERS.shape[1], 3)
    with pytest.raises(ParameterError, match=r"several labels .* loss = 'binary_cross_entropy'"):
        sottovoce.simulate(table(), model=module, data=(NUMBERS, labels))


def test_functions_in_a_spec_need_consent_and_names_are_checked() -> None:
    data = (NUMBERS, TOKENS[:, 0] % 3)
    spec = table(loss="tests.runs.test_what_is_trained:weighted")
    with pytest.raises(ConfigError, match=r"imports and runs code: model\.loss = 'tests"):
        sottovoce.simulate(spec, data=data)
    with pytest.raises(ConfigError, match=r"'model\.loss'.*did you mean 'huber'"):
        sottovoce.simulate(table(loss="hubert"), data=data)
    with pytest.raises(ConfigError, match=r"'model\.metric'.*a function of your own"):
        sottovoce.simulate(table(metric="accuracy"), data=data)
    keys = {"kind": "module", "factory": "a:b", "loss": "c:d", "metric": "memory:e"}
    given = ModelSpec.model_validate(keys)
    assert given.user_functions == {"factory": "a:b", "loss": "c:d"}


@pytest.mark.slow  # Importing peft takes seconds.
def test_adapters_of_a_small_transformer_are_trained_alone() -> None:
    peft = pytest.importorskip("peft")
    lora = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lora.py"))
    base = lora["pretrained"](steps=3)
    config = peft.LoraConfig(r=2, target_modules=["mixed"], lora_dropout=0.1)
    model = peft.get_peft_model(base, config)
    for level in ("sample", "client"):
        run = sottovoce.simulate(table(level), model=model, data=lora["sentences"](3, 20, seed=0))
        assert [name.split(".")[-3] for name in run.tensors()] == ["lora_A", "lora_B"] * 2
        assert list(run.metrics) == ["token accuracy"]
    spec = lora["spec"](1) | {"data": {"clients": 100}}
    assert sottovoce.simulate(spec, model=model, data=lora["sentences"](3, 125, seed=0)).finished
