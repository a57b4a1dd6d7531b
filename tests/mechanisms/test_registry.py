import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L1Ball, L2Ball
from sottovoce.core.errors import ParameterError, PluginError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.privacy.accounting import epsilon
from sottovoce.privacy.events import Repeated


def test_an_unknown_mechanism_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown mechanism 'gausian'.*'gaussian'"):
        registry.find("gausian")


def test_two_mechanisms_cannot_claim_one_name() -> None:
    example = registry.find("gaussian")
    decorate = registry.register(
        "gaussian", summary="", examples=[{}], example_domain=example.example_domain
    )
    with pytest.raises(PluginError, match=r"two mechanisms claim.*sottovoce and module"):
        decorate(type("Impostor", (Gaussian,), {}))


def test_a_plug_in_outside_the_package_is_found_through_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "toy_noise.py").write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from sottovoce.core.domains import L1Ball, L2Ball
            from sottovoce.mechanisms.gaussian import Gaussian
            from sottovoce.mechanisms.registry import register

            @register("toy_noise", summary="a toy", examples=[{"noise_multiplier": 1.0}],
                      example_domain=L2Ball(dimension=2, radius=1.0))
            @dataclass(frozen=True, slots=True, kw_only=True)
            class ToyNoise(Gaussian):
                pass
            """
        )
    )
    metadata = tmp_path / "toy_noise-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy_noise\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sottovoce.mechanisms]\ntoy_noise = toy_noise\n")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sottovoce.mechanisms import registry\n"
        "print([r.kind for r in registry.registrations()])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "'toy_noise'" in found.stdout


BUDGET: dict[str, Any] = {
    "rounds": 5,
    "epsilon": 3.5,
    "delta": 1e-5,
    "event_of": ReleaseTerms(adjacency=Adjacency.ZERO_OUT),
}


def balls(*records: int, shape: type[L1Ball] | type[L2Ball] = L2Ball) -> list[L1Ball | L2Ball]:
    return [shape(dimension=8, radius=1.0, records=count) for count in records]


@pytest.mark.parametrize(
    ("kind", "given", "shape"),
    [
        ("gauss_hermite", {"levels": "auto"}, L2Ball),
        ("gaussian", {}, L2Ball),
        ("cldp", {}, L1Ball),  # its noise does not follow the number of records
    ],
)
def test_one_calibration_keeps_the_budget_of_clients_of_every_size(
    kind: str, given: dict[str, Any], shape: type[L1Ball] | type[L2Ball]
) -> None:
    registration = registry.find(kind)
    domains = balls(100, 3, 2, 1, shape=shape)
    found = registration.calibrate_for_all(domains, given, **BUDGET)
    events = [registration.build(domain, found).privacy(Adjacency.ZERO_OUT) for domain in domains]
    spent = [epsilon(Repeated(event=event, count=5), 1e-5) for event in events]
    assert 3.45 < max(spent) <= 3.5


def test_automatic_levels_are_for_the_largest_client() -> None:
    registration = registry.find("gauss_hermite")
    domains = balls(100, 1)
    found = registration.calibrate_for_all(domains, {"levels": "auto"}, **BUDGET)
    alone = registration.calibrated(domains[0], {"levels": "auto"}, **BUDGET)
    assert found["levels"] == alone["levels"]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"metric": "l1"},
        {"metric": "l2_squared", "input_bits": 0, "output_bits": 1},
        {"metric": "l2_squared", "input_bits": 2000, "output_bits": 1},
        {"metric": "l1", "input_bits": 3, "output_bits": 0},
    ],
)
def test_calibration_checks_the_other_parameters_first(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"needs|must be an integer"):
        registry.find("metric_mvu").calibrated(balls(1)[0], given, **BUDGET)


def test_settings_are_the_examples_without_the_knob_unless_declared() -> None:
    assert registry.find("clamped_sign").settings == ({"logit_bound": "auto"},)
    assert registry.find("gaussian").settings == ({},)
    assert registry.find("gauss_hermite").settings[0] == {"levels": 2}


def test_settings_from_examples_are_automatic_where_that_can_be() -> None:
    derived = registry._settings_of(
        [{"levels": 2, "noise": 1.0}, {"levels": 3, "noise": 2.0}],
        registry.CalibratedParameter(parameter="noise", more_private="larger"),
        {"levels": None},
    )
    assert derived == ({"levels": "auto"},)
