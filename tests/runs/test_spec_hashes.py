"""A run is its spec's hash: ledgers and results hang on it, so these never change."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import sottovoce.runs
from sottovoce.runs.loading import load, parse

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_BIT = tomllib.loads((EXAMPLES / "one_bit.toml").read_text())

OF_EXAMPLES = {
    "client_budgets.toml": "0d0bda415879c1ba",
    "client_level.toml": "2341bcfc62830a55",
    "federation.toml": "7dab0c4bb1232ed4",
    "local_dp_sgd.toml": "7f09a331f90e2fb0",
    "nbafl.toml": "e9a257c70fd95b0b",
    "one_bit.toml": "9f6f871395cd3621",
    "own_model.toml": "b20ccafab3c56bb7",
    "scaffold.toml": "c1dc85af3214ed25",
    "secret_order.toml": "70fbf02c54dfcf9a",
    "secure_sum.toml": "292648cc6d3a0183",
    "seeded.toml": "36d4a83eeb2c97c2",
    "shuffled.toml": "07b942a1707f4824",
}
# Of 'one_bit.toml' with one section replaced: every kind of every section is there.
OF_SECTIONS: list[tuple[dict[str, Any], str]] = [
    ({"model": {"kind": "linear", "bias": False}}, "282e9526fa07d175"),
    ({"model": {"kind": "mlp", "hidden_units": 8}}, "501c34dbc26d9343"),
    ({"model": {"kind": "tanh_convnet"}}, "4d1f2719b734edba"),
    ({"model": {"kind": "femnist_convnet"}}, "552c40c744ecf2e0"),
    ({"model": {"kind": "udp_mnist_cnn"}}, "8396f26724302fc5"),
    ({"model": {"kind": "udp_medical_cnn"}}, "2f3fa6f5ee09c23f"),
    ({"model": {"kind": "small_cifar_cnn"}}, "d53d2a0985e1cb96"),
    ({"model": {"kind": "strided_cnn"}}, "d6b65fcf518288a7"),
    ({"model": {"kind": "resnet18"}}, "306b7629923fc8b8"),
    ({"model": {"kind": "wind_cnn"}}, "588e75e42b7fcc66"),
    ({"model": {"kind": "module", "factory": "a.b:c", "arguments": {"x": 1}}}, "57de13ef4300b0f9"),
    ({"model": {"kind": "in_memory", "label": "mine"}}, "950b6ff735c97c86"),
    (
        {
            "data": {
                "dataset": "digits",
                "clients": 10,
                "partition": {"kind": "dirichlet", "alpha": 0.5},
            }
        },
        "50086e5005943a0a",
    ),
    (
        {"data": {"dataset": "digits", "clients": 10, "partition": {"kind": "shards"}}},
        "0feba9177734d000",
    ),
    ({"data": {"dataset": "femnist", "partition": {"kind": "by_owner"}}}, "028d4aed8178fc3b"),
    ({"data": {"dataset": "digits", "partition": {"kind": "one_sample"}}}, "33b299914eaab3dc"),
    (
        {
            "data": {
                "dataset": "csv:a.csv",
                "clients": 3,
                "csv": {"label_columns": ["y"], "bounds": {"*": [0.0, 1.0]}},
            }
        },
        "0ef38d64d081d64f",
    ),
    (
        {
            "data": {
                "dataset": "csv:a.csv",
                "clients": 3,
                "csv": {"label_columns": ["y"], "missing": "skip", "decimal": ","},
            }
        },
        "e5720c35fcd3ca23",
    ),
    ({"features": [{"kind": "scattering"}]}, "3b9a22fd1c469734"),
    ({"features": [{"kind": "scattering", "views": ["plain", "log"]}]}, "e707923fed4c0115"),
    (
        {"features": [{"kind": "precondition", "images": "strokes", "count": 10, "components": 4}]},
        "eacf990f28046707",
    ),
    ({"features": [{"kind": "flatten"}]}, "99377b2ce2f4bc8c"),
    (
        {
            "algorithm": {
                "kind": "fedavg",
                "server_learning_rate": 1.0,
                "aggregation": {"kind": "median"},
            }
        },
        "644cf01f034b7118",
    ),
    (
        {
            "algorithm": {
                "kind": "fedavg",
                "server_learning_rate": 1.0,
                "aggregation": {"kind": "trimmed_mean", "fraction": 0.25},
            }
        },
        "3c8175de211a84e9",
    ),
    (
        {
            "algorithm": {
                "kind": "fedavg",
                "server_learning_rate": 1.0,
                "aggregation": {
                    "kind": "mode_connectivity",
                    "proxy_samples": 9,
                    "steps": 2,
                    "learning_rate": 0.1,
                },
            }
        },
        "9d11d88c63bda275",
    ),
    ({"algorithm": {"kind": "scaffold", "server_learning_rate": 1.0}}, "002647a93ef22903"),
    (
        {
            "algorithm": {
                "kind": "fedavg",
                "server_learning_rate": 1.0,
                "local_learning_rate": 0.1,
                "local_epochs": 1,
                "batch_size": 10,
            }
        },
        "e0398c758a2f5177",
    ),
    ({"algorithm": {"kind": "nbafl", "local_learning_rate": 0.5}}, "9cf03695ca6b9448"),
    ({"algorithm": {"kind": "other", "amount": 2.0}}, "2649bfd1e3a2b6b2"),
    ({"sampling": {"kind": "poisson", "rate": 0.5}}, "7a39a18d76c52827"),
    ({"sampling": {"kind": "fixed_size", "size": 4}}, "2f675a6ae1f3dc50"),
    ({"sampling": {"kind": "epochs", "size": 4}}, "d7c557f1e9e60cd5"),
    ({"channel": {"kind": "secure_sum", "minimum_clients": 7}}, "eaf2c1059be03805"),
    ({"channel": {"kind": "shuffler", "minimum_clients": 7}}, "c8f46cb3bd0e7e24"),
    ({"channel": {"kind": "secret_order", "minimum_clients": 7}}, "51c59025b8a8f0ab"),
    ({"channel": {"kind": "central"}}, "f374d9feae7768e1"),
    ({"mechanism": "auto"}, "0d4c4f85871c1ce9"),
    (
        {"runtime": {"messages": "packed", "downlink": "float16", "deterministic": True}},
        "0b2f228e5d1fcbc7",
    ),
    ({"runtime": {"backend": "flower-sim"}}, "9f6f871395cd3621"),
    ({"deployment": {"minimum_replies": 2}}, "3a4fcffa5155123d"),
]


@pytest.mark.parametrize(("name", "expected"), OF_EXAMPLES.items())
def test_an_example_keeps_its_hash(name: str, expected: str) -> None:
    assert load(EXAMPLES / name).hash == expected


@pytest.mark.parametrize(("sections", "expected"), OF_SECTIONS, ids=str)
def test_a_kind_of_section_keeps_its_hash(sections: dict[str, Any], expected: str) -> None:
    assert parse(ONE_BIT | sections).hash == expected


def test_the_demo_keeps_its_hash() -> None:
    assert load(Path(sottovoce.runs.__path__[0]) / "digits.toml").hash == "2322df9d1470e191"
