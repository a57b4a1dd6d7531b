"""Plug-ins from end to end: a distribution with one file of each kind, through the commands.

The files are those of docs/how-to/write-a-plug-in.md.
"""

import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import install
from pages import ROOT, blocks
from specs import small_table

pytest.importorskip("torch")

from sottovoce.auditing.attacks.context import ATTACKS
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ConfigError, PluginError
from sottovoce.core.plugin_returns import NUMBER, Contract, enforce_contract
from sottovoce.federated.algorithms.algorithm import AGGREGATIONS, ALGORITHMS
from sottovoce.federated.cohorts import SAMPLINGS, ClientSampling, register_sampling
from sottovoce.learning.datasets.dataset import Dataset
from sottovoce.learning.datasets.register import _RETURNS, DATASETS
from sottovoce.learning.features import FEATURES
from sottovoce.learning.models.register import MODELS
from sottovoce.learning.partition import PARTITIONS
from sottovoce.mechanisms.registry import MECHANISMS
from sottovoce.privacy.accounting import ACCOUNTANTS, privacy_spent, within
from sottovoce.privacy.events import Conditional, PureDp, Repeated
from sottovoce.protocol.channels.channel import CHANNELS
from sottovoce.runs import loading
from sottovoce.runs.backends import BACKENDS
from sottovoce.runs.loading import parse

REGISTERS: tuple[Any, ...] = (
    MECHANISMS,
    ACCOUNTANTS,
    ALGORITHMS,
    AGGREGATIONS,
    ATTACKS,
    DATASETS,
    MODELS,
    FEATURES,
    PARTITIONS,
    SAMPLINGS,
    CHANNELS,
    BACKENDS,
)
PAGE = ROOT / "docs/how-to/write-a-plug-in.md"
FILES = {block.title: block.text for block in blocks(PAGE) if block.title}
OURS = "distribution example-plugins 0.1"
WORD = f"the privacy claims of plug-in {{}} '{{}}' ({OURS}) hold (not verified)"

# One mechanism that claims twice the noise that it adds, an accountant that finds everything free.
HUSH = (
    FILES["rounded_gaussian.py"]
    .replace('"rounded_gaussian"', '"hush"')
    .replace("mu=shift / self.noise_multiplier", "mu=shift / (2.0 * self.noise_multiplier)")
)
FREE = """
from sottovoce.privacy.accounting import register

@register(summary="nothing costs anything")
class Free:
    name = "free"

    def epsilon(self, event, delta):
        return 0.0

    def delta(self, event, epsilon):
        return 0.0
"""
HALVED = """
from dataclasses import dataclass, replace
from sottovoce.federated.algorithms.algorithm import AggregationSection, register_aggregation

@register_aggregation("halved", summary="half a step")
@dataclass(frozen=True, slots=True, kw_only=True)
class Halved(AggregationSection):
    by: float = 2.0
    gathers = False

    def build(self, averaging, setting):
        return replace(averaging, server_learning_rate=averaging.server_learning_rate / self.by)
"""
# Plug-ins that return nothing, one of each kind; and classes that cannot be registered at all.
MUTE = """
from dataclasses import dataclass
from sottovoce import federated, learning, mechanisms, protocol, runs

frozen = dataclass(frozen=True, slots=True, kw_only=True)

@learning.register("mute", summary="no data")
def mute(request): ...

@learning.register_model("mute", summary="no module")
@frozen
class Model:
    def build(self, input_shape, num_outputs): ...

@learning.register_feature("mute", summary="no function")
@frozen
class Feature:
    returns_function: bool = False

    def prepare(self, setting):
        return (lambda part, features: features.values) if self.returns_function else None

@learning.register_partition("mute", summary="no shares")
@frozen
class Partition(learning.Partition):
    def shares(self, labels, num_clients, generator, owners): ...

@federated.register_sampling("mute", summary="nobody")
@frozen
class Sampling(federated.ClientSampling):
    def draw(self, num_clients, schedule, number): ...

@protocol.register_channel("mute", summary="no words")
@frozen
class Channel(protocol.Channel):
    @property
    def visibility(self):
        return mechanisms.EveryMessage()

    def describe(self): ...

@federated.register_aggregation("mute", summary="no algorithm")
@frozen
class Aggregation(federated.AggregationSection):
    def build(self, averaging, setting): ...

class Stepless(federated.FedAvg):
    def server_step(self, model, combined, state):
        return model

@federated.register("mute", summary="no step")
@frozen
class Algorithm(federated.AlgorithmSection):
    builds: bool = False

    def build(self, setting):
        work = federated.SampleClippedGradient(
            clip_norm=setting.clip_norm, sampling_rate=1.0, summation="float"
        )
        if self.builds:
            return Stepless(local_work=work, server_learning_rate=1.0, server_momentum=0.0)

@runs.register_backend("mute")
def backend(spec, folder, *, resume=False, on_round=None, on_resume=None): ...
"""
MUTE_MECHANISM = (
    FILES["rounded_gaussian.py"].replace('"rounded_gaussian"', '"mute"')
    + """
    def code_format(self): ...
"""
)
MUTE_KINDS = ("model", "feature", "partition", "sampling", "channel", "backend")
FEDAVG = {"kind": "fedavg", "server_learning_rate": 1.0}
RETURNED: dict[str, tuple[dict[str, Any], str]] = {
    "dataset": ({"data": {"dataset": "mute", "clients": 2}}, "its result must be a sottovoce.lea"),
    "model": ({"model": {"kind": "mute"}}, "build() must be a torch.nn.Module"),
    "feature": ({"features": [{"kind": "mute"}]}, "prepare() must be a function"),
    "function": (
        {"features": [{"kind": "mute", "returns_function": True}]},
        "must be sottovoce.learning.Features",
    ),
    "partition": (
        {"data": {"dataset": "digits", "clients": 2, "partition": {"kind": "mute"}}},
        "shares() must be a list with an array",
    ),
    "sampling": ({"sampling": {"kind": "mute"}}, "draw() must be a list of whole"),
    "channel": ({"channel": {"kind": "mute"}}, "describe() must be a string, got None"),
    "aggregation": (
        {"algorithm": {**FEDAVG, "aggregation": {"kind": "mute"}}},
        "build() must be a sottovoce.federated.Algorithm",
    ),
    "algorithm": ({"algorithm": {"kind": "mute"}}, "must be a sottovoce.federated.Algorithm"),
    "step": (
        {"algorithm": {"kind": "mute", "builds": True}},
        "server_step() must be the next model",
    ),
    "backend": ({"runtime": {"backend": "mute"}}, "must be the result of the run"),
    "mechanism": ({"mechanism": {"kind": "mute"}}, "code_format() must be LevelC"),
}


@pytest.fixture(autouse=True)
def example_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's distribution, and one with what is wrong; afterwards they are unknown again."""
    folder = tmp_path / "site-packages"
    described = tomllib.loads(FILES["pyproject.toml"])["project"]
    modules = {name.removesuffix(".py"): FILES[name] for name in FILES if name.endswith(".py")}
    install(folder, described["name"], modules, described["entry-points"])
    install(
        folder,
        "whistling",
        {
            "hush": HUSH,
            "free": FREE,
            "halved": HALVED,
            "mute": MUTE,
            "mute_mechanism": MUTE_MECHANISM,
            "off": "import nothing_of_that_name\n",
        },
        {
            "sottovoce.mechanisms": {
                **{"hush": "hush", "gaussian": "hush", "off": "off"},
                "mute": "mute_mechanism",
            },
            "sottovoce.accountants": {"free": "free"},
            "sottovoce.aggregations": {"halved": "halved", "mute": "mute"},
            "sottovoce.algorithms": {"scaffold": "off", "mute": "mute"},
            "sottovoce.datasets": {"mute": "mute"},
            **{f"sottovoce.{kind}s": {"mute": "mute"} for kind in MUTE_KINDS},
        },
    )
    for register in REGISTERS:
        register.ours()  # these stay; what is entered from here on does not
        monkeypatch.setattr(register, "_entries", dict(register._entries))
        monkeypatch.setattr(register, "_problems", {})
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in (*modules, "hush", "free", "halved", "off", "mute", "mute_mechanism"):
        sys.modules.pop(name, None)


def spec_file(folder: Path, **changes: Any) -> Path:
    """The page's spec, with other tables in the place of some."""
    table = tomllib.loads(FILES["toy.toml"]) | changes
    place = folder / "toy.toml"
    place.write_text(loading.toml_text(table))
    return place


def test_what_is_registered_is_listed_with_its_source_and_what_is_broken(cli: Any) -> None:
    rows = cli("plugins", "--json").json
    found = {(row["kind"], row["name"], row["from"]): row["problem"] for row in rows}
    ours, theirs = OURS, "distribution whistling 0.1"
    assert found["mechanism", "rounded_gaussian", ours] is None
    assert found["accountant", "basic", ours] is None
    assert found["algorithm", "sign_descent", ours] is None
    assert found["attack", "confidence_gap", ours] is None
    assert found["mechanism", "mvu", "sottovoce"] is None
    assert found["experiment", "mvu-scalar", "sottovoce-papers"] is None
    assert "nothing_of_that_name" in found["mechanism", "off", theirs]
    assert "two mechanisms claim" in found["mechanism", "gaussian", theirs]
    out = cli("plugins").out
    assert "plug-ins, 3 of which cannot be used" in out


def test_a_spec_runs_with_a_mechanism_and_an_algorithm_from_outside(
    cli: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = cli("run", spec_file(tmp_path), "--out", out, "--json").json
    assert result["mechanism"]["kind"] == "rounded_gaussian"
    assert result["bits_per_coordinate"] == 4
    assert 3.9 < result["epsilon"] <= 4.0
    words = WORD.format("algorithm", "sign_descent"), WORD.format("mechanism", "rounded_gaussian")
    for word in words:
        assert word in result["assumes"]
        assert word in result["guarantee"]
    # The model is a sum of steps of one size, so the algorithm that ran is the plug-in's.
    assert result["accuracy"] > 0.3
    ledger = cli("ledger", "show", out, "--json").json
    assert words[1] in json.dumps(ledger)
    header = json.loads((out / "run.json").read_text())
    assert header["spec"]["algorithm"] == {"kind": "sign_descent", "step": 0.02}


@pytest.mark.parametrize("messages", ["packed", "none"])
def test_encode_and_a_finite_law_are_enough_for_fast_simulations(
    cli: Any, tmp_path: Path, messages: str
) -> None:
    """The page's mechanism has no fast path of its own."""
    place = spec_file(tmp_path, randomness="seeded", runtime={"messages": messages})
    result = cli("run", place, "--out", tmp_path / "run", "--json").json
    assert result["mechanism"]["kind"] == "rounded_gaussian"
    assert result["accuracy"] > 0.3


def test_defaults_of_a_plug_in_are_written_into_the_resolved_spec(cli: Any, tmp_path: Path) -> None:
    place = spec_file(tmp_path, algorithm={"kind": "sign_descent"}, rounds=1)
    assert cli("run", place, "--out", tmp_path / "run").code == 0
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["spec"]["algorithm"] == {"kind": "sign_descent", "step": 0.05}


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"kind": "sign_decent"}, "unknown algorithm 'sign_decent'; did you mean 'sign_descent'"),
        ({"kind": "sign_descent", "stepp": 1.0}, "unknown key 'stepp'; did you mean 'step'?"),
        ({"kind": "sign_descent", "step": -1.0}, "algorithm.step must be a finite number above 0"),
        (
            {"kind": "scaffold", "server_learning_rate": 1.0},
            "two algorithms claim the name 'scaffold'",
        ),
        (
            {"kind": "fedavg", "server_learning_rate": 1.0, "aggregation": {"kind": "medain"}},
            "unknown aggregation 'medain'; did you mean 'median'",
        ),
    ],
)
def test_mistakes_in_the_algorithm_are_one_line_and_exit_2(
    cli: Any, tmp_path: Path, algorithm: dict[str, Any], message: str
) -> None:
    found = cli("run", spec_file(tmp_path, algorithm=algorithm), "--out", tmp_path / "run")
    assert found.code == 2
    assert message in found.err
    assert len(found.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_no_federation_runs_an_algorithm_from_outside(cli: Any, tmp_path: Path) -> None:
    place = spec_file(tmp_path, runtime={"backend": "flower-sim"})
    found = cli("run", place, "--out", tmp_path / "run")
    assert found.code == 2
    assert "sites cannot verify others, and algorithm 'sign_descent'" in found.err


def test_an_aggregation_from_outside_is_named_and_no_federation_runs_it(
    cli: Any, tmp_path: Path
) -> None:
    algorithm = {"kind": "fedavg", "server_learning_rate": 1.0, "aggregation": {"kind": "halved"}}
    changes = {"algorithm": algorithm, "mechanism": {"kind": "gauss_hermite", "levels": 2}}
    result = cli("run", spec_file(tmp_path, **changes), "--out", tmp_path / "run", "--json").json
    claims = "the privacy claims of plug-in aggregation 'halved' (distribution whistling"
    assert claims in result["assumes"]
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["spec"]["algorithm"]["aggregation"] == {"kind": "halved", "by": 2.0}
    place = spec_file(tmp_path, **changes, runtime={"backend": "flower-sim"})
    assert "sites cannot verify" in cli("run", place, "--out", tmp_path / "no").err


def test_the_attack_is_run_by_name_and_not_unasked(cli: Any, tmp_path: Path) -> None:
    table = {"kind": "stochastic_sign"}
    run = tmp_path / "run"
    assert cli("run", spec_file(tmp_path, mechanism=table, rounds=2), "--out", run).code == 0
    few = ("--shadows", 4, "--candidates", 60, "--fpr", 0.2, "--json")
    found = cli("attack", "membership", run, "--attack", "confidence_gap", *few).json
    assert list(found["attacks"]) == ["confidence_gap"]
    assert 0.0 <= found["attacks"]["confidence_gap"]["auc"]["value"] <= 1.0
    wrong = cli("attack", "membership", run, "--attack", "confidence_gup", *few)
    assert (wrong.code, "did you mean 'confidence_gap'" in wrong.err) == (2, True)
    from sottovoce.auditing.attacks.context import own_attacks

    assert own_attacks() == ("shokri", "lira-offline", "lira-online", "canary")


GRR = ("--mechanism", "generalized_rr", "--param", "epsilon=0.5", "--param", "bits=2",
       "--dimension", 1)  # fmt: skip


def test_an_accountant_from_outside_is_asked_by_name_together_with_built_in_ones(cli: Any) -> None:
    words = ("privacy", "spend", *GRR, "--rounds", 10, "--delta", 1e-5, "--json")
    own = cli(*words).json
    found = cli(*words, "--accountant", "basic").json
    assert found["epsilon"] == pytest.approx(5.0)
    assert found["assumes"] == WORD.format("accountant", "basic")
    assert found["bounds"] == {"basic": found["epsilon"], **own["bounds"]}
    assert own["assumes"] is None


def test_an_accountant_from_outside_never_enters_our_bound(cli: Any) -> None:
    words = ("privacy", "spend", *GRR, "--rounds", 10, "--delta", 1e-5, "--json")
    before = cli(*words).json
    assert cli(*words, "--accountant", "free").json["epsilon"] == 0.0
    assert cli(*words).json == before
    event = Repeated(event=PureDp(epsilon=0.5, adjacency=Adjacency.ZERO_OUT), count=11)
    assert "free" not in dict(privacy_spent(event, 1e-5).bounds)
    assert not within(event, 1e-5, 0.1)


def test_what_rests_on_a_mechanisms_word_says_so_wherever_it_is_printed(cli: Any) -> None:
    words = ("--mechanism", "rounded_gaussian", "--param", "noise_multiplier=5", "--dimension", 4)
    word = WORD.format("mechanism", "rounded_gaussian")
    for command in ("spend", "curve"):
        found = cli("privacy", command, *words, "--delta", 1e-5, "--rounds", 5, "--json").json
        assert found["assumes"] == word
    found = cli("privacy", "spend", *words, "--delta", 1e-5)
    assert word in " ".join(found.out.split())
    plain = cli(
        "privacy", "spend", "--mechanism", "mvu", "--param", "epsilon=1", "--param",
        "input_bits=2", "--param", "output_bits=2", "--dimension", 1, "--delta", 1e-5, "--json",
    ).json  # fmt: skip
    assert plain["assumes"] is None


def test_the_plan_ranks_a_mechanism_from_outside_and_does_not_choose_it(cli: Any) -> None:
    words = ("--epsilon", 2, "--delta", 1e-5, "--rounds", 5, "--dimension", 50, "--bits", 4)
    plan = cli("plan", *words, "--json").json
    (found,) = (row for row in plan["ranking"] if row["mechanism"] == "rounded_gaussian")
    assert found["assumes"] == WORD.format("mechanism", "rounded_gaussian")
    assert "used only if a spec names it" in found["explanation"]
    assert plan["choice"] not in ("rounded_gaussian", "hush")
    (broken,) = (row["reason"] for row in plan["left_out"] if row["mechanism"] == "mute")
    assert "code_format() must be LevelCodes" in broken  # and the others are ranked
    assert {row["mechanism"] for row in plan["ranking"]} >= {
        "rounded_gaussian",
        "hush",
        "gauss_hermite",
    }


def test_a_mechanism_that_keeps_the_contract_passes_and_one_that_lies_fails(cli: Any) -> None:
    kept = cli("mechanism", "check", "rounded_gaussian", "--json").json
    assert {row["kept"] for row in kept} == {True}
    assert len(kept) == 8
    found = cli("mechanism", "check", "hush")
    assert found.code == 1
    assert "claimed" in found.out
    assert "'hush' does not keep the contract" in found.out
    for name, reason in (
        ("rounded_gausian", "did you mean 'rounded_gaussian'"),
        ("off", "cannot be used"),
    ):
        wrong = cli("mechanism", "check", name)
        assert (wrong.code, reason in wrong.err) == (2, True)


def test_a_broken_plug_in_and_a_taken_name_are_errors_only_where_they_are_asked_for(
    cli: Any,
) -> None:
    listed = cli("mechanism", "list", "--json").json
    assert {row["kind"] for row in listed} >= {"rounded_gaussian", "gaussian", "mvu"}
    shown = cli("mechanism", "list")
    assert shown.code == 0
    assert "left out: the plug-in mechanism 'off' (distribution whistling 0.1)" in shown.out
    taken = cli("mechanism", "show", "gaussian")
    assert taken.code == 2
    assert "sottovoce and distribution whistling 0.1" in taken.err


def test_data_clients_and_channel_of_the_page_run(cli: Any, tmp_path: Path) -> None:
    place = tmp_path / "clusters.toml"
    place.write_text(FILES["clusters.toml"])
    result = cli("run", place, "--out", tmp_path / "run", "--json").json
    assert result["channel"] == "mix_network: messages arrive without their senders"
    assert {row["rounds"] for row in result["clients"]} == {2}  # five of ten in each of 4 rounds
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["spec"]["sampling"] == {"kind": "round_robin", "size": 5}
    assert "two_clusters" in cli("data", "list").out
    halves = ("--set", "data.partition.kind=halves", "--set", "sampling.size=2", "--out")
    few = cli("run", place, *halves, tmp_path / "few")
    assert (
        "releases nothing from fewer than 5 messages, but a round has at most 2 clients" in few.err
    )
    two = cli("run", place, *halves, tmp_path / "two", "--set", "channel.batch=2", "--json").json
    assert len(two["clients"]) == 2
    year = cli("run", place, "--set", "rounds=400", "--out", tmp_path / "year")
    assert "at most 365 rounds" in year.err


@pytest.mark.parametrize("kind", RETURNED)
def test_a_plug_in_that_returns_the_wrong_thing_is_named_with_what_it_must_return(
    kind: str, cli: Any, tmp_path: Path
) -> None:
    changes, told = RETURNED[kind]
    place = spec_file(tmp_path, **{"algorithm": FEDAVG, "rounds": 1, **changes})
    wrong = cli("run", place, "--out", tmp_path / "run")
    assert wrong.code == 2
    assert "'mute' (distribution whistling 0.1)" in wrong.err
    assert told in wrong.err
    assert "correct the plug-in" in wrong.err


def test_a_class_that_lacks_what_its_kind_needs_is_not_registered() -> None:
    class Whole(ClientSampling):
        pass

    with pytest.raises(PluginError, match="sampling 'whole' must be a dataclass; put @da"):
        register_sampling("whole", summary="")(Whole)
    with pytest.raises(PluginError, match="the sampling 'whole' does not define draw; define"):
        register_sampling("whole", summary="")(dataclass(frozen=True)(Whole))
    assert "whole" not in SAMPLINGS.names()


def test_a_field_without_slots_is_what_a_kind_needs() -> None:
    @dataclass(frozen=True)
    class Open:
        visibility: object

    contract = Contract(needs=("visibility", "build"))
    with pytest.raises(PluginError, match="the sampling 'open' does not define build; define"):
        enforce_contract(SAMPLINGS, "open", Open, contract)


def test_a_dataset_from_outside_has_finite_features() -> None:
    rows, labels = np.zeros((4, 2), dtype=np.float32), np.arange(4) % 2

    def data(train: Any) -> Dataset:
        return Dataset(
            name="rows",
            train_features=train,
            train_labels=labels,
            test_features=rows,
            test_labels=labels,
            num_classes=2,
        )

    assert _RETURNS.fits(data(rows))
    assert not _RETURNS.fits(data(np.full_like(rows, np.nan)))
    assert not _RETURNS.fits(None)


def test_a_number_of_numpy_is_a_number() -> None:
    fits = [NUMBER.fits(one) for one in (3, 0.5, np.int64(3), np.float32(0.5), None, "3")]
    assert fits == [True, True, True, True, False, False]


def test_an_algorithm_needs_a_kind() -> None:
    for wrong in ({}, {"kind": 3}, "fedavg"):
        with pytest.raises(ConfigError, match=r"'algorithm'.*'kind' of an algorithm"):
            parse(small_table(algorithm=wrong))


def test_the_word_of_a_plug_in_is_a_short_printable_name() -> None:
    event = PureDp(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
    assert Conditional(event=event, assumption="plug-in mechanism 'x' (module y)")
    for wrong in ("plug-in \n", "plug-in " + 300 * "x", "trust me", ""):
        with pytest.raises(Exception, match="assumption must be one of"):
            Conditional(event=event, assumption=wrong)
