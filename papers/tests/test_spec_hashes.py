"""A run is its spec's hash: results hang on it, so these never change."""

import tomllib
from pathlib import Path

import pytest

import sottovoce_papers
from sottovoce.runs.loading import parse

GRIDS = Path(sottovoce_papers.__path__[0]) / "grids"
OF_CATALOGUE = {
    "adaptive-clipping.toml": "5f62c199727be865",
    "digits-sweep.toml": "d338675b513d44db",
    "dp-sgd-cifar10.toml": "534ff10a51e985c6",
    "dp-sgd-medical-mnist.toml": "2d25519f30e9e12f",
    "dp-sgd-messages.toml": "4a56b78a80f59e19",
    "dp-sgd-mnist.toml": "a0db1cd7af475eba",
    "dp-sgd-networks.toml": "a0380e6670c76fb5",
    "imvu-cifar10-public.toml": "a35615725480cee5",
    "imvu-cifar10.toml": "97bf78ad65933f61",
    "imvu-femnist.toml": "bb4a5e019c538c32",
    "imvu-mnist-public.toml": "ebe65e4748ba633c",
    "imvu-mnist.toml": "0b9d1ccc81d504c5",
    "mvu-mnist-convnet.toml": "6e08b6e357c722bd",
    "mvu-mnist-linear.toml": "19346c9cdf657e4e",
    "plain-cifar10-resnet18.toml": "e2e3b16bfe38f4a4",
    "plain-cifar10.toml": "413fd0d7da66b6a0",
    "plain-images.toml": "fb6c6a53769083f2",
    "plain-wind.toml": "7675253ff619b6c3",
    "secure-sum-cifar10.toml": "477627a37a7986a1",
    "secure-sum-femnist.toml": "294f5b5ea605dffc",
    "secure-sum-mnist.toml": "7f36db6a5caaedbf",
    "seeded-mnist-clients.toml": "f082e6185bcc401b",
    "seeded-mnist.toml": "9093c9bab790473b",
    "shuffled-mnist.toml": "66ee0732512bd088",
    "udp-accuracy.toml": "71df134d971741e8",
    "udp-cifar10-resnet18.toml": "d9815d176354f432",
    "udp-cifar10.toml": "205d36f4e7463a39",
    "udp-clients.toml": "13c09fcd7672d764",
    "udp-connectivity.toml": "636bd6cd3507f487",
    "udp-heterogeneous.toml": "010d1dfea80a4d97",
    "udp-privacy.toml": "305395b41db367ea",
    "udp-sampling.toml": "5e2ab2869d211b01",
    "udp-scaffold-wind.toml": "08292c1b4feb274e",
}


@pytest.mark.parametrize(("name", "expected"), OF_CATALOGUE.items())
def test_the_base_of_an_experiment_keeps_its_hash(name: str, expected: str) -> None:
    table = tomllib.loads((GRIDS / name).read_text())
    assert parse(table.get("base", table)).hash == expected
