"""What a site computes for an order: the simulator's own bits, and nothing for a hostile server."""

import contextlib
import dataclasses
import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from in_process import InProcessPost, a_policy, digests, run_with_sites, sites_in
from one_message import privatise_one
from specs import LOCAL_STEPS, small_spec

from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import (
    ConfigError,
    DataError,
    DeploymentError,
    PolicyError,
    SottovoceError,
    WireError,
)
from sottovoce.core.randomness import SeededRandomness
from sottovoce.deployment import site_training
from sottovoce.deployment.orders import Order, read_refusal, read_rounds_charged
from sottovoce.deployment.site import OwnRecords, Site
from sottovoce.deployment.site_training import compute
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.rounds import compute_finite_uplinks
from sottovoce.flower.client import make_order_handler
from sottovoce.flower.records import from_records, to_records
from sottovoce.learning import datasets
from sottovoce.learning.clients import ClientData
from sottovoce.learning.datasets import register
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.client import PrivatizationRequest
from sottovoce.protocol.message import open_sealed
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs, task_and_data
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

CLIENT = {"level": "client", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5}
SAMPLE = {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5}
ALONE = {"deterministic": True}

# -- the simulator's bits --------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "sample level": {},
    "client level": {"privacy": CLIENT, "algorithm": LOCAL_STEPS},
    "statistics": {
        "privacy": {**CLIENT, "clip_norm": {"kind": "auto", "quantile": 0.3}},
        "algorithm": LOCAL_STEPS,
        "runtime": {**ALONE, "downlink": "int8"},
        "evaluation": {"private": {"metric": "loss", "every": 2, "holdout_fraction": 0.2}},
    },
    "normalized records": {"privacy": {**SAMPLE, "clip_norm": "auto"}},
    "one local step": {"privacy": CLIENT, "algorithm": {**LOCAL_STEPS, "local_steps": 1}},
    "proximal": {"privacy": CLIENT, "algorithm": {**LOCAL_STEPS, "proximal_weight": 0.1}},
    "minibatches": {
        "privacy": CLIENT,
        "algorithm": {**LOCAL_STEPS, "local_steps": 1, "local_epochs": 1, "batch_size": 100},
    },
    "momentum": {
        "algorithm": {"kind": "fedavg", "server_learning_rate": 0.5, "server_momentum": 0.9}
    },
    "median": {
        "algorithm": {
            "kind": "fedavg",
            "server_learning_rate": 1.0,
            "aggregation": {"kind": "median"},
        }
    },
    "mode connectivity": {
        "privacy": CLIENT,
        "algorithm": {
            **LOCAL_STEPS,
            "aggregation": {
                "kind": "mode_connectivity",
                "proxy_samples": 50,
                "steps": 2,
                "learning_rate": 0.1,
            },
        },
    },
    "nbafl": {
        "privacy": {"level": "client", "clip_norm": 5.0, "epsilon": 50.0, "delta": 0.01},
        "algorithm": {"kind": "nbafl", "local_steps": 2, "local_learning_rate": 0.1},
        "mechanism": {"kind": "gaussian"},
    },
    "scaffold": {"algorithm": {"kind": "scaffold", "server_learning_rate": 1.0}},
    "sampled records": {"privacy": {**SAMPLE, "record_sampling_rate": 0.3}},
    "local noisy steps": {
        "algorithm": {
            **LOCAL_STEPS,
            "local_work": "dp_sgd",
            "batch_size": 20,
            "local_optimizer": {"kind": "adam"},
            "message_bits": 1,
        },
        "mechanism": {"kind": "gaussian"},
    },
    "groups": {
        "privacy": {
            **SAMPLE,
            "groups": [
                {"clients": 1, "epsilon": 2.0, "mechanism": {"kind": "gauss_hermite", "levels": 4}},
                {"clients": ["client-0003"], "mechanism": {"kind": "gaussian"}},
            ],
        }
    },
    "penalties": {
        "privacy": {**CLIENT, "groups": [{"clients": 2, "epsilon": 3.0}]},
        "algorithm": {**LOCAL_STEPS, "budget_penalty": True},
    },
    "int8 downlink": {"runtime": {**ALONE, "downlink": "int8"}},
    "a trained head": {"model": {"kind": "mlp", "hidden_units": 5, "trainable": ["2.*"]}},
    "sampled clients": {"sampling": {"kind": "fixed_size", "size": 2}},
    "shards": {
        "data": {
            "dataset": "digits",
            "clients": 4,
            "partition": {"kind": "shards"},
            "num_train": 99,
        }
    },
    "secure sum": {
        "privacy": {**CLIENT, "epsilon": 20.0},
        "algorithm": LOCAL_STEPS,
        "mechanism": {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 20.0},
        "channel": {"kind": "secure_sum", "minimum_clients": 2},
    },
    "statistics in a secure sum": {
        "privacy": {**CLIENT, "clip_norm": "auto", "epsilon": 20.0},
        "algorithm": LOCAL_STEPS,
        "mechanism": {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 20.0},
        "channel": {"kind": "secure_sum", "minimum_clients": 2},
    },
}


@pytest.mark.parametrize("case", list(CASES))
def test_sites_send_the_bits_that_the_simulator_sends(tmp_path: Path, case: str) -> None:
    spec = small_spec(**{"rounds": 2, "runtime": ALONE, **CASES[case]})
    fast = run(spec, tmp_path / "fast")
    post = InProcessPost(sites_in(tmp_path, spec.privacy.level))
    federated = run_with_sites(spec, tmp_path / "federated", post)
    assert post.refusals == []
    sent = digests(tmp_path / "fast" / "ledger.sqlite")
    found: dict[tuple[Any, ...], bytes] = {}
    for name in {client for _, client, *_ in sent}:
        found |= digests(tmp_path / f"{name}.sqlite")
    assert found == sent
    assert len(sent) == len(post.orders) > 0
    models = [RunFolder(tmp_path / name).load_checkpoint() for name in ("fast", "federated")]
    assert models[0] is not None
    assert models[1] is not None
    assert np.array_equal(models[0].model, models[1].model)
    assert fast["accuracy"] == federated["accuracy"]
    assert fast["epsilon"] == federated["epsilon"]


def test_a_run_calibrated_for_a_sites_total_is_answered_to_its_end(tmp_path: Path) -> None:
    """The plan in the first order is what a site sets delta aside for."""
    spec = small_spec(rounds=3, runtime=ALONE, privacy=CLIENT, algorithm=LOCAL_STEPS)
    limits = {"epsilon_total": CLIENT["epsilon"], "delta": CLIENT["delta"]}
    post = InProcessPost(sites_in(tmp_path, "client", **limits))
    run_with_sites(spec, tmp_path / "first", post)
    assert post.refusals == []


def test_a_run_without_any_reply_has_failed_also_when_it_is_resumed(tmp_path: Path) -> None:
    spec = small_spec(rounds=3, runtime=ALONE, privacy=CLIENT, algorithm=LOCAL_STEPS)
    refusing = InProcessPost(sites_in(tmp_path, "client", smallest_cohort=99))
    out = tmp_path / "run"
    with pytest.raises(DeploymentError, match=r"3 rounds in a row.*'smallest_cohort' is 99"):
        run_with_sites(spec, out, refusing)
    for _ in range(2):
        with pytest.raises(
            DeploymentError, match=r"none of 3 rounds.*cohort.*if sites refused, lower"
        ):
            run_with_sites(spec, out, refusing, resume=True)
    assert RunFolder(out).result() is None
    resumed = run_with_sites(spec, out, InProcessPost(sites_in(tmp_path, "client")), resume=True)
    assert resumed["rounds"] == 3
    short = small_spec(rounds=1, runtime=ALONE, privacy=CLIENT, algorithm=LOCAL_STEPS)
    with pytest.raises(DeploymentError, match="none of 1 rounds"):
        run_with_sites(short, tmp_path / "short", refusing)


def test_a_sites_ledger_says_what_the_servers_says_of_it(tmp_path: Path) -> None:
    spec = small_spec(rounds=4, runtime=ALONE)
    run_with_sites(spec, tmp_path / "run", InProcessPost(sites_in(tmp_path, "sample")))
    with Ledger(tmp_path / "run" / "ledger.sqlite") as server:
        for name in server.clients():
            with Ledger(tmp_path / f"{name}.sqlite") as own:
                assert own.history(name) == server.history(name)
                assert own.verify() == []


# -- an order in hand ------------------------------------------------------------------------------


def first_order(spec: RunSpec, folder: Path) -> Order:
    """The first order of a run's first round; sites that do not answer are all it needs."""
    post = InProcessPost(lambda name: Site(name="nobody", policy=a_policy("sample"), ledger=folder))
    with pytest.raises(SottovoceError, match="rounds in a row"):
        run_with_sites(
            spec.model_copy(
                update={"deployment": spec.deployment.model_copy(update={"idle_rounds": 1})}
            ),
            folder / "first",
            post,
        )
    return dataclasses.replace(post.orders[0], spec=spec.plain() | {"rotation": "on"})


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> Order:
    return first_order(small_spec(), tmp_path_factory.mktemp("order"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return sites_in(tmp_path, "sample")("client-0000")


def changed(order: Order, **tables: Any) -> Order:
    """The order with keys of its spec's tables changed."""
    spec = json.loads(json.dumps(order.spec))
    for name, change in tables.items():
        if isinstance(spec.get(name), dict) and isinstance(change, dict):
            spec[name] = {**spec[name], **change}
        else:
            spec[name] = change
    return dataclasses.replace(order, spec=spec)


def charges(site: Site) -> int:
    with site.open_ledger() as ledger:
        return ledger.num_charges


def test_the_order_in_hand_is_answered(order: Order, site: Site) -> None:
    assert len(compute(order, site)) == 1
    assert charges(site) == 1


def test_a_site_with_other_frozen_weights_refuses_the_order(order: Order, site: Site) -> None:
    with pytest.raises(ConfigError, match="frozen parameters or buffers of the model are not"):
        compute(dataclasses.replace(order, frozen="0" * 16), site)
    assert charges(site) == 0


# -- what an order must not make a site do ---------------------------------------------------------


def forbidden(*_: object, **__: object) -> NoReturn:
    raise AssertionError("this must not be reached")


def test_a_factory_of_the_servers_choice_is_neither_imported_nor_called(
    order: Order, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = changed(order, model=None)
    factory = {"kind": "module", "factory": "os:getcwd", "arguments": {}}
    monkeypatch.setattr(importlib, "import_module", forbidden)
    monkeypatch.setattr(site_training, "load_data", forbidden)
    for model in (factory, {"kind": "linear", "loss": "os:getcwd"}):
        with pytest.raises(PolicyError, match=r"'os:getcwd' is not allowed; .* 'factories'"):
            compute(changed(hostile, model=model), site)
    assert charges(site) == 0


@pytest.mark.parametrize("dataset", ["csv:/etc/passwd", "npz:/srv/x.npz", "hf:/home", "CSV:/x"])
def test_a_file_of_the_servers_choice_is_not_read(
    order: Order, site: Site, monkeypatch: pytest.MonkeyPatch, dataset: str
) -> None:
    monkeypatch.setattr(site_training, "load_data", forbidden)
    with pytest.raises(PolicyError, match="such as a file, and a site reads no data set"):
        compute(changed(order, data={"dataset": dataset, "clients": 4}), site)


def test_no_order_makes_a_site_fetch_anything(
    order: Order, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr(register, "fetch", forbidden)
    with pytest.raises(PolicyError, match="run 'sottovoce data fetch mnist'"):
        compute(changed(order, data={"dataset": "mnist", "clients": 4}), site)


def test_public_images_of_the_servers_choice_are_not_read(
    order: Order, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_training, "load_data", forbidden)
    step = {"kind": "precondition", "images": "/etc/x.npz", "count": 9, "components": 2}
    with pytest.raises(PolicyError, match="are a file of the server, and"):
        compute(changed(order, features=[step]), site)


@pytest.mark.parametrize("messages", ["none", "packed"])
def test_only_messages_that_are_stored_are_sent(order: Order, site: Site, messages: str) -> None:
    """Without it, gradients would be added up in float32, and a record would move the rounding."""
    with pytest.raises(ConfigError, match="sends real messages"):
        compute(changed(order, runtime={"messages": messages}), site)
    assert charges(site) == 0


def test_noise_that_a_trusted_server_would_add_is_not_relied_on(order: Order, site: Site) -> None:
    with pytest.raises(ConfigError, match="central"):
        compute(changed(order, channel={"kind": "central"}), site)


def test_an_order_that_names_its_client_hides_nobodys_place(order: Order, site: Site) -> None:
    """Whatever the spec says of its backend: the server knows whom it asks, and when."""
    secret = {"channel": {"kind": "secret_order", "minimum_clients": 2}}
    with pytest.raises(ConfigError, match=r"knows when each is asked.*'shuffler'"):
        compute(changed(order, **secret), site)
    assert charges(site) == 0


def test_control_variates_that_a_site_would_have_to_keep_are_refused(tmp_path: Path) -> None:
    order = first_order(small_spec(privacy=CLIENT, algorithm=LOCAL_STEPS), tmp_path)
    algorithm = {**LOCAL_STEPS, "kind": "scaffold"}
    spec = {**order.spec, "algorithm": algorithm}
    with pytest.raises(ConfigError, match="keeps no control variates"):
        compute(dataclasses.replace(order, spec=spec), sites_in(tmp_path, "client")(order.client))


TERMS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"mechanisms": ("gaussian",)}, "'gauss_hermite' is not allowed"),
    ({"privacy": {"adjacency": "replace-one"}}, {}, "adjacency replace-one is not allowed"),
    ({"randomness": "seeded"}, {"seeded_randomness": False}, "'seeded_randomness' is false"),
    ({}, {"smallest_cohort": 5}, "'smallest_cohort' is 5"),
    (
        {"channel": {"kind": "shuffler", "minimum_clients": 2}},
        {"trust_server": False},
        "'trust_server' is false",
    ),
]


@pytest.mark.parametrize(("change", "policy", "reason"), TERMS)
def test_the_policy_is_asked_before_anything_is_read_or_built(
    order: Order,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    policy: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(site_training, "load_data", forbidden)
    monkeypatch.setattr(site_training, "_built", forbidden)
    with pytest.raises(PolicyError, match=reason):
        compute(changed(order, **change), sites_in(tmp_path, "sample", **policy)(order.client))


def test_a_level_that_is_not_allowed_is_refused_before_records_are_counted(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_training, "load_data", forbidden)
    with pytest.raises(PolicyError, match=r"level 'sample' is not allowed.*'client'"):
        compute(order, sites_in(tmp_path, "client")(order.client))


def test_company_that_is_not_asked_is_no_company(tmp_path: Path) -> None:
    spec = small_spec(
        privacy={**CLIENT, "epsilon": 20.0},
        algorithm=LOCAL_STEPS,
        mechanism={"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 4.0},
        channel={"kind": "secure_sum", "minimum_clients": 4},
    )
    order = first_order(spec, tmp_path)
    site = sites_in(tmp_path, "client")(order.client)
    with pytest.raises(SottovoceError, match="3 clients"):
        compute(dataclasses.replace(order, cohort=3), site)
    # Nor is it enough to say that there are many clients.
    many = changed(order, channel={"kind": "secure_sum", "minimum_clients": 1000})
    with pytest.raises(ConfigError, match="exceeds the 4 clients"):
        compute(dataclasses.replace(many, cohort=1000), site)
    assert charges(site) == 0


def test_another_clients_order_is_not_answered(order: Order, tmp_path: Path) -> None:
    site = sites_in(tmp_path, "sample")("client-0001")
    with pytest.raises(
        PolicyError, match="this site is 'client-0001', but the request is for 'client-0000'"
    ):
        compute(order, site)
    stranger = sites_in(tmp_path, "sample")("mallory")
    with pytest.raises(PolicyError, match="which is not a client of the run"):
        compute(dataclasses.replace(order, client="mallory"), stranger)


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "mlp", "hidden_units": 2**20},
        {"kind": "mlp", "hidden_units": 6},
        {"kind": "linear", "bias": False},
    ],
)
def test_a_model_is_as_large_as_what_arrived_or_is_not_built(
    order: Order, site: Site, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    monkeypatch.setattr(site_training, "load_inputs", forbidden)
    with pytest.raises(WireError, match="bytes arrived for a model of"):
        compute(dataclasses.replace(order, spec={**order.spec, "model": model}), site)


@pytest.mark.parametrize("units", [10**9, 10**30])
def test_a_model_beyond_all_bounds_is_refused(order: Order, site: Site, units: int) -> None:
    model = {"kind": "mlp", "hidden_units": units}
    with pytest.raises(ConfigError, match="hidden_units"):
        compute(dataclasses.replace(order, spec={**order.spec, "model": model}), site)


@pytest.mark.parametrize(
    "vectors",
    [(), (b"",), (bytes(4),), (bytes(2600), bytes(2600)), (bytes(2601),), (b"\xff" * 2600,)],
)
def test_vectors_that_are_no_model_are_refused(
    order: Order, site: Site, vectors: tuple[bytes, ...]
) -> None:
    with pytest.raises(WireError):
        compute(dataclasses.replace(order, vectors=vectors), site)
    assert charges(site) == 0


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        ((bytes(2600),) * 2, "2 vectors arrived, but the algorithm 'fedavg' reads at most 1"),
        ((), "an order must have at least one vector"),
    ],
)
def test_vectors_are_counted_before_any_record_is_read(
    order: Order,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    vectors: tuple[bytes, ...],
    reason: str,
) -> None:
    monkeypatch.setattr(site_training, "load_data", forbidden)
    monkeypatch.setattr(site_training, "unpack_start", forbidden)
    with pytest.raises(WireError, match=reason):
        compute(dataclasses.replace(order, vectors=vectors), site)


def test_vectors_of_two_sizes_are_refused_before_any_is_decoded(
    order: Order, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_training, "load_data", forbidden)
    scaffold = {"kind": "scaffold", "local_steps": 2, "local_learning_rate": 0.1}
    spec = {**order.spec, "algorithm": {**scaffold, "server_learning_rate": 1.0}}
    with pytest.raises(WireError, match="vectors of 2600 and of 99999999 bytes arrived"):
        compute(dataclasses.replace(order, spec=spec, vectors=(bytes(2600), bytes(99999999))), site)


@pytest.mark.parametrize("downlink", ["float16", "bfloat16", "int8"])
def test_another_format_than_what_arrived_is_refused(
    order: Order, site: Site, downlink: str
) -> None:
    with pytest.raises(WireError, match="bytes arrived"):
        compute(changed(order, runtime={"downlink": downlink}), site)


@pytest.mark.parametrize("clients", [10**6, 10**9, 10**18])
def test_more_clients_than_records_are_refused(order: Order, site: Site, clients: int) -> None:
    with pytest.raises(SottovoceError):
        compute(changed(order, data={"clients": clients}), site)


ODD: list[Any] = [
    None, True, "x", "auto", "", [], [1], {}, {"a": 1}, -1, 0, 1.5, 2**60, 10**40, 1e308, -1e308,
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize("name", ["levels", "noise_multiplier"])
def test_a_mechanism_with_odd_parameters_is_refused_or_charged(
    order: Order, site: Site, name: str, value: Any
) -> None:
    hostile = dataclasses.replace(order, mechanism={**order.mechanism, name: value})
    try:
        messages = compute(hostile, site)
    except ConfigError:
        messages = []
    assert len(messages) == charges(site)


@pytest.mark.parametrize("kind", [one.kind for one in registry.registrations()])
def test_every_mechanism_refuses_odd_parameters_by_name(kind: str) -> None:
    found = registry.find(kind)
    example = dict(found.examples[0])
    for name in example:
        for value in ODD:
            with contextlib.suppress(ConfigError):  # and nothing else is raised
                site_training._built(kind, found.example_domain, {**example, name: value})
        with pytest.raises(ConfigError):
            site_training._built(kind, found.example_domain, {**example, "surplus": 1})


@pytest.mark.parametrize("kind", [None, 3, "", "no_such", ["gaussian"], {}])
def test_a_mechanism_without_a_kind_is_refused(order: Order, site: Site, kind: Any) -> None:
    with pytest.raises((ConfigError, PolicyError)):
        compute(dataclasses.replace(order, mechanism={**order.mechanism, "kind": kind}), site)


# -- what is charged -------------------------------------------------------------------------------


def test_the_charge_follows_from_the_sites_own_records(order: Order, tmp_path: Path) -> None:
    """What a server says about sizes, or about the mechanism's domain, changes nothing."""
    site = sites_in(tmp_path, "sample")(order.client)
    compute(order, site)
    spec = parse(order.spec)
    resolved = resolve(load_inputs(spec))
    (part,) = (part for part in resolved.parts if part.client == order.client)
    with site.open_ledger() as ledger:
        ((event, count),) = ledger.history(order.client)
    assert count == 1
    assert event == part.mechanism.privacy(spec.privacy.adjacency)


def test_a_message_does_not_open_under_a_plan_that_lies_about_records(
    order: Order, site: Site
) -> None:
    (message,) = compute(order, site)
    spec = parse(order.spec)
    honest = next(part for part in resolve(load_inputs(spec)).parts if part.client == order.client)
    claimed = honest.mechanism
    assert isinstance(claimed, GaussHermite)
    ball = claimed.input_domain

    def plan(records: int) -> tuple[RoundPlan, ClientPlan]:
        mechanism = dataclasses.replace(
            claimed,
            input_domain=L2Ball(dimension=ball.dimension, radius=ball.radius, records=records),
        )
        part = dataclasses.replace(honest, mechanism=mechanism)
        made = RoundPlan(
            run=order.run,
            round=order.round,
            unit=resolve(load_inputs(spec)).algorithm.unit,
            adjacency=spec.privacy.adjacency,
            clients=(part,),
            rotation=Rotation.of_round(order.run, order.round, ball.dimension),
        )
        return made, part

    made, part = plan(ball.records)
    open_sealed(message, made.envelope(part, 0))
    for records in (1, ball.records - 1, ball.records + 1, 10 * ball.records):
        made, part = plan(records)
        with pytest.raises(WireError, match="hash of the public parameters"):
            open_sealed(message, made.envelope(part, 0))


def test_a_record_sampling_rate_is_charged_as_it_is_drawn(tmp_path: Path) -> None:
    """A server that asks for a small sample, and gets its price, gets no more than the sample."""
    spec = small_spec(
        privacy={**SAMPLE, "epsilon": None, "record_sampling_rate": 0.01},
        mechanism={"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 100.0},
        rounds=1,
    )
    post = InProcessPost(sites_in(tmp_path, "sample"))
    run_with_sites(spec, tmp_path / "run", post)
    whole = changed(post.orders[0], privacy={"record_sampling_rate": 1.0})
    whole = dataclasses.replace(whole, run="whole")
    site = sites_in(tmp_path, "sample")(whole.client)
    compute(whole, site)
    with site.open_ledger() as ledger:
        events = [privacy_spent(event, 1e-5).epsilon for event, _ in ledger.history(site.name)]
    assert len(events) == 2
    assert events[0] < events[1]


def test_system_keys_make_a_retry_the_same_bytes_and_a_rerun_another_charge(
    tmp_path: Path,
) -> None:
    order = first_order(small_spec(randomness="system"), tmp_path)
    site = sites_in(tmp_path, "sample", seeded_randomness=False)(order.client)
    first = compute(order, site)
    assert compute(order, site) == first
    assert compute(changed(order, privacy={"clip_norm": 1.0}), site) == first
    other = dataclasses.replace(order, run="another")
    assert compute(other, site) != first
    assert charges(site) == 2
    with site.open_ledger() as ledger:
        ((event, count),) = ledger.history(site.name)
        spent = ledger.spent(site.name, 1e-5)
    assert count == 2
    assert spent == privacy_spent(Repeated(event=event, count=2), 1e-5)


def test_a_hostile_model_moves_no_more_than_a_record_may(order: Order, site: Site) -> None:
    """Weights that overflow for some records: those count as zero, and an answer is sent."""
    weights = np.full(650, 3e38, dtype="<f4")
    weights[::2] *= -1
    hostile = dataclasses.replace(order, vectors=(weights.tobytes(),))
    assert len(compute(hostile, site)) == 1
    assert charges(site) == 1


# -- records of a site's own -----------------------------------------------------------------------

RECORDS = {"ada": 40, "bob": 25, "eve": 31}
COLUMNS = ("age", "height", "weight")


def arrays(name: str, count: int) -> tuple[Any, Any]:
    generator = SeededRandomness(1).generator(name, count)
    features = generator.uniform(-0.5, 0.5, size=(count, 3)).astype(np.float32)
    labels = generator.integers(0, 2 if name == "ada" else 3, size=count)
    return features, labels


def npz_records(folder: Path, name: str, count: int, *, shift: int = 0) -> OwnRecords:
    features, labels = arrays(name, count)
    path = folder / f"{name}.npz"
    np.savez(path, x=features, y=labels + shift)
    return OwnRecords(dataset=f"npz:{path}", classes=3)


CSV = {"classes": ["0", "1", "2"], "bounds": {"*": [-1.0, 1.0]}}


def csv_records(folder: Path, name: str, count: int, *, factor: float = 1.0) -> OwnRecords:
    features, labels = arrays(name, count)
    path = folder / f"{name}.csv"
    rows = [",".join((*COLUMNS, "label"))]
    rows += [
        ",".join([*(repr(float(factor * x)) for x in row), str(label)])
        for row, label in zip(features, labels, strict=True)
    ]
    path.write_text("\n".join(rows))
    return OwnRecords(dataset=f"csv:{path}", csv=CSV)


def own_spec(folder: Path, kind: str, level: str = "sample", **changes: Any) -> RunSpec:
    """A run whose server tests on a file of its own."""
    made = (npz_records if kind == "npz" else csv_records)(folder, "server", 60)
    data: dict[str, Any] = {"dataset": made.dataset, "sites": RECORDS}
    if kind == "csv":
        data["csv"] = CSV
    levels: dict[str, Any] = {"privacy": SAMPLE}
    if level == "client":
        # Twelve bits of a whole client would be accounted for step by step, which takes long.
        mechanism = {"kind": "gauss_hermite", "levels": 4}
        levels = {"privacy": CLIENT, "algorithm": LOCAL_STEPS, "mechanism": mechanism}
    return small_spec(**{"rounds": 2, "runtime": ALONE, "data": data, **levels, **changes})


def own_sites(
    folder: Path, records: Callable[[Path, str, int], OwnRecords], level: str = "sample"
) -> Callable[[str], Site]:
    def site_of(name: str) -> Site:
        site = sites_in(folder, level)(name)
        return dataclasses.replace(site, records=records(folder, name, RECORDS[name]))

    return site_of


def test_sites_are_not_told_where_the_servers_files_lie(tmp_path: Path) -> None:
    spec = own_spec(tmp_path, "npz")
    assert str(tmp_path) in spec.data.dataset
    post = InProcessPost(own_sites(tmp_path, npz_records))
    run_with_sites(spec, tmp_path / "run", post)
    assert {order.spec["data"]["dataset"] for order in post.orders} == {"npz:server.npz"}


@pytest.mark.parametrize("level", ["sample", "client"])
@pytest.mark.parametrize(("kind", "records"), [("npz", npz_records), ("csv", csv_records)])
def test_sites_train_on_all_of_their_own_records(
    tmp_path: Path, kind: str, records: Callable[[Path, str, int], OwnRecords], level: str
) -> None:
    """ada has no record of class 2, which is fine; what a loader would hold out takes part."""
    spec = own_spec(tmp_path, kind, level)
    post = InProcessPost(own_sites(tmp_path, records, level))
    result = run_with_sites(spec, tmp_path / "run", post)
    assert post.refusals == []
    assert result["rounds"] == 2
    order = next(one for one in post.orders if (one.client, one.round) == ("ada", 1))
    site = dataclasses.replace(post.site_of("ada"), ledger=tmp_path / "again.sqlite")
    assert compute(order, site) == [_by_hand(order, spec, tmp_path, kind)]


def _by_hand(order: Order, given: RunSpec, folder: Path, kind: str) -> bytes:
    """ada's message without any of the site's own code: from the arrays that were written."""
    spec = parse(order.spec).model_copy(update={"data": given.data})
    features, labels = arrays("ada", RECORDS["ada"])
    if kind == "csv":
        features = ((features.astype(np.float64) + 1.0) / 2.0 - 0.5).astype(np.float32)
    resolved = resolve(load_inputs(spec))
    data = datasets.load(
        spec.data.dataset,
        SeededRandomness(spec.seed).generator("test split"),
        csv=spec.data.csv.options() if spec.data.csv else None,
    )
    task, _ = task_and_data(spec, data, SeededRandomness(spec.seed))
    client = ClientData(
        name="ada", features=torch.from_numpy(features), labels=torch.from_numpy(labels)
    )
    model = np.frombuffer(order.vectors[0], dtype="<f4").astype(np.float64)
    step = ClientStepInput(
        run=order.run, round=order.round, model=model, state={}, randomness=SeededRandomness(3)
    )
    (uplink,) = compute_finite_uplinks(resolved.algorithm, task, [client], step)
    part = next(one for one in resolved.parts if one.client == "ada")
    plan = RoundPlan(
        run=order.run,
        round=order.round,
        unit=resolved.algorithm.unit,
        adjacency=spec.privacy.adjacency,
        clients=(part,),
        rotation=Rotation.of_round(order.run, order.round, task.dimension),
    )
    request = PrivatizationRequest(part=part, uplink=0, values=uplink[2])
    with Ledger(folder / "by-hand.sqlite", create=True) as ledger:
        return privatise_one(plan, request, ledger, SeededRandomness(spec.seed))


OwnOrder = Callable[..., Order]


@pytest.fixture(scope="module")
def own_order(tmp_path_factory: pytest.TempPathFactory) -> OwnOrder:
    @functools.cache
    def made(kind: str = "npz", level: str = "sample") -> Order:
        folder = tmp_path_factory.mktemp("own")
        order = first_order(own_spec(folder, kind, level), folder)
        assert order.client == "ada"
        return order

    return made


@pytest.mark.parametrize("count", [39, 41, 1])
def test_at_sample_level_a_wrong_count_is_refused_and_the_right_one_told_at_home(
    tmp_path: Path, own_order: OwnOrder, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    site = own_sites(tmp_path, npz_records)("ada")
    order = changed(own_order(), data={"sites": {**RECORDS, "ada": count}})
    with pytest.raises(ConfigError, match="must be right") as refused:
        compute(order, site)
    assert str(RECORDS["ada"]) not in str(refused.value)
    assert f"but it has {RECORDS['ada']}" in caplog.text
    assert charges(site) == 0


def test_at_client_level_the_count_is_nobodys_business(tmp_path: Path, own_order: OwnOrder) -> None:
    order = own_order(level="client")
    sent = []
    for number, count in enumerate((1, 40, 10**9)):
        site = own_sites(tmp_path, npz_records, "client")("ada")
        site = dataclasses.replace(site, ledger=tmp_path / f"{number}.sqlite")
        sent += compute(changed(order, data={"sites": {**RECORDS, "ada": count}}), site)
    assert len(set(sent)) == 1


@pytest.mark.parametrize(("kind", "records"), [("npz", npz_records), ("csv", csv_records)])
def test_whichever_client_withdraws_takes_no_part_from_the_next_order_on(
    tmp_path: Path,
    own_order: OwnOrder,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    records: Callable[[Path, str, int], OwnRecords],
) -> None:
    used: list[int] = []

    def watched(algorithm: Any, task: Any, clients: Any, step: Any) -> Any:
        used.append(clients[0].num_samples)
        return compute_finite_uplinks(algorithm, task, clients, step)

    monkeypatch.setattr(site_training, "compute_finite_uplinks", watched)
    order = own_order(kind, "client")
    for number, count in enumerate((40, 39, 40)):
        site = sites_in(tmp_path, "client")("ada")
        own = records(tmp_path, "ada", count)
        compute(order, dataclasses.replace(site, records=own, ledger=tmp_path / f"{number}.sqlite"))
    assert used == [40, 39, 40]


def test_records_that_are_the_same_are_read_once(
    tmp_path: Path, own_order: OwnOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, site = own_order(level="client"), own_sites(tmp_path, npz_records, "client")("ada")
    compute(order, site)
    monkeypatch.setattr(site_training, "load_data", forbidden)
    compute(dataclasses.replace(order, round=2), site)
    assert charges(site) == 2


def test_a_site_without_records_of_its_own_says_so(tmp_path: Path, own_order: OwnOrder) -> None:
    with pytest.raises(PolicyError, match=r"names none; add \[data\] to it"):
        compute(own_order(), sites_in(tmp_path, "sample")("ada"))


def test_a_table_needs_its_list_of_classes_in_the_sites_file(
    tmp_path: Path, own_order: OwnOrder
) -> None:
    site, order = own_sites(tmp_path, csv_records)("ada"), own_order("csv")
    assert site.records is not None
    for table in ({}, {"label_column": "label"}, {"classes": "0"}):
        bare = dataclasses.replace(site, records=dataclasses.replace(site.records, csv=table))
        with pytest.raises(PolicyError, match="see the site's log"):
            compute(order, bare)


# What a server might ask in order to learn something, if reading or failing told it.
QUESTIONS: dict[str, Callable[[Order], Order]] = {
    "as agreed": lambda order: order,
    "are there labels of 1 or more?": lambda order: dataclasses.replace(order, classes=1),
    "are there labels of 2 or more?": lambda order: dataclasses.replace(order, classes=2),
    "are there labels of 9 or more?": lambda order: dataclasses.replace(order, classes=9),
    "are labels whole numbers?": lambda order: dataclasses.replace(order, classes=None),
    "are there more than 9 test rows?": lambda order: changed(order, data={"num_test": 10}),
    "are there more than 50 rows?": lambda order: changed(order, data={"num_test": 51}),
    "how many rows are there?": lambda order: changed(
        order,
        algorithm={
            "aggregation": {
                "kind": "mode_connectivity",
                "proxy_samples": 10**6,
                "steps": 1,
                "learning_rate": 0.1,
            }
        },
    ),
    "how many rows are there, at sample level?": lambda order: changed(
        order,
        privacy={"level": "sample"},
        algorithm={"local_steps": 1, "local_learning_rate": None},
    ),
    "does the model fit?": lambda order: dataclasses.replace(order, vectors=(bytes(8),)),
    "does it overflow?": lambda order: dataclasses.replace(
        order, vectors=(np.full(12, 3e38, dtype="<f4").tobytes(),)
    ),
    "does it diverge?": lambda order: changed(order, algorithm={"local_learning_rate": 1e12}),
}
TABLE_QUESTIONS: dict[str, Callable[[Order], Order]] = {
    "is anything above .3?": lambda order: changed(
        order, data={"csv": {**CSV, "bounds": {"*": [-1.0, 0.3]}}}
    ),
    "is anybody of age 0?": lambda order: changed(
        order, data={"csv": {**CSV, "bounds": {"age": [1e-9, 1.0]}}}
    ),
    "which classes are there?": lambda order: changed(
        order, data={"csv": {**CSV, "classes": ["0", "1"]}}
    ),
    "is the weight a class?": lambda order: changed(
        order, data={"csv": {**CSV, "label_columns": ["weight"]}}
    ),
    "what are the columns?": lambda order: changed(
        order, data={"csv": {**CSV, "label_columns": ["no such column"]}}
    ),
    "whose are they?": lambda order: changed(order, data={"csv": {**CSV, "owner_column": "age"}}),
    "are there more than 9999 rows?": lambda order: changed(
        order, data={"csv": {**CSV, "test_fraction": 1e-4}}
    ),
    "is there a header?": lambda order: changed(order, data={"csv": {**CSV, "header": False}}),
}


def replied(order: Order, site: Site) -> Message:
    message = Message(content=to_records(order.blobs()), dst_node_id=1, message_type="train")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return make_order_handler(compute, lambda _: site)(message, context)


@pytest.mark.usefixtures("flower_task")
def test_an_answer_and_a_refusal_say_how_many_rounds_of_the_run_were_charged(
    order: Order, site: Site
) -> None:
    said = []
    for number in (1, 2, 2):  # asked once more, it sends the same bytes, and is charged once
        blobs = from_records(replied(dataclasses.replace(order, round=number), site).content)
        assert read_refusal(blobs) is None
        said.append(read_rounds_charged(blobs))
    strict = dataclasses.replace(site, policy=a_policy("sample", smallest_cohort=99))
    blobs = from_records(replied(dataclasses.replace(order, round=3), strict).content)
    assert "'smallest_cohort' is 99" in (read_refusal(blobs) or "")
    said.append(read_rounds_charged(blobs))
    another = dataclasses.replace(order, run="another", round=3)
    said.append(read_rounds_charged(from_records(replied(another, strict).content)))
    assert said == [1, 2, 2, 2, 0]


def told(order: Order, site: Site) -> str | None:
    """What a server hears, word for word; None for a message."""
    reply = replied(order, site)
    if reply.has_error():
        return reply.error.reason
    blobs = from_records(reply.content)
    return str(blobs) if read_refusal(blobs) else None


@pytest.mark.usefixtures("flower_task")
@pytest.mark.parametrize(
    ("kind", "question"),
    [
        *(("npz", question) for question in QUESTIONS),
        *(("csv", question) for question in [*QUESTIONS, *TABLE_QUESTIONS]),
    ],
)
def test_no_question_is_answered_by_how_a_site_fails(
    tmp_path: Path, own_order: OwnOrder, kind: str, question: str
) -> None:
    """Two sites with the same file and other records: a server hears the same from both."""
    order = {**QUESTIONS, **TABLE_QUESTIONS}[question](own_order(kind, "client"))
    heard = []
    for number, (other, count) in enumerate((("ada", 40), ("eve", 12))):
        folder = tmp_path / str(number)
        folder.mkdir()
        records = (npz_records if kind == "npz" else csv_records)(folder, other, count)
        site = sites_in(folder, "client")("ada")
        heard.append(told(order, dataclasses.replace(site, records=records)))
    assert heard[0] == heard[1]
    assert (heard[0] is None) == (question in _ANSWERED)
    assert not heard[0] or "40" not in heard[0]


_ANSWERED = {  # with a message that is charged like any other
    "as agreed",
    "how many rows are there?",
    "are there more than 9 test rows?",
    "are there more than 50 rows?",
    "does it overflow?",
    "does it diverge?",
}


@pytest.mark.usefixtures("flower_task")
def test_records_that_break_the_sites_own_file_are_told_to_the_site_alone(
    tmp_path: Path, own_order: OwnOrder
) -> None:
    site = sites_in(tmp_path, "client")("ada")
    broken = csv_records(tmp_path, "ada", 40, factor=100.0)
    site, order = dataclasses.replace(site, records=broken), own_order("csv", "client")
    with pytest.raises(DataError, match="is outside its bounds"):
        compute(order, site)
    assert told(order, site) == "the site failed; see its log"
