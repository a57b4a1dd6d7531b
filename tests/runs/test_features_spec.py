import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from sottovoce.learning.features import Flatten, Precondition, Scattering
from sottovoce.runs.feature_steps import steps_of
from sottovoce.runs.features_spec import FeatureSpec, FlattenSpec, PreconditionSpec, ScatteringSpec
from sottovoce.runs.loading import parse_text

TABLES: TypeAdapter[tuple[FeatureSpec, ...]] = TypeAdapter(tuple[FeatureSpec, ...])


def read(text: str) -> tuple[FeatureSpec, ...]:
    return TABLES.validate_python(tuple(parse_text(text, "spec")["features"]))


def test_tables_become_steps_in_their_order() -> None:
    specs = read(
        """
        [[features]]
        kind = "scattering"
        angles = 11
        groups = 6

        [[features]]
        kind = "precondition"
        images = "strokes"
        count = 8000
        components = 100

        [[features]]
        kind = "flatten"
        """
    )
    assert [type(spec) for spec in specs] == [ScatteringSpec, PreconditionSpec, FlattenSpec]
    assert steps_of(specs) == (
        Scattering(scales=2, angles=11, groups=6),
        Precondition(images="strokes", count=8000, components=100, exponent=0.5, bias=0.1, seed=0),
        Flatten(),
    )


@pytest.mark.parametrize("images", ["dead_leaves", "public/emnist.npz"])
def test_images_are_drawn_or_read_from_a_file(images: str) -> None:
    spec = PreconditionSpec(kind="precondition", images=images, count=10, components=3)
    assert spec.images == images


def test_unknown_images_are_answered_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match="did you mean 'strokes'"):
        PreconditionSpec(kind="precondition", images="stroke", count=10, components=3)


@pytest.mark.parametrize(
    "line",
    [
        *["angels = 8", "angles = 0", "scales = 2.0", "scales = 9", "groups = true"],
        *["views = []", 'views = ["log", "log"]', 'views = ["oponent"]', 'views = "log"'],
    ],
)
def test_a_wrong_key_or_value_is_refused(line: str) -> None:
    with pytest.raises(ValidationError):
        read(f'[[features]]\nkind = "scattering"\n{line}')


def test_views_reach_the_step() -> None:
    specs = read('[[features]]\nkind = "scattering"\nviews = ["opponent", "log"]')
    assert steps_of(specs) == (Scattering(views=("opponent", "log")),)
    assert specs[0].model_dump(mode="json")["views"] == ["opponent", "log"]


def test_specs_without_views_are_written_as_before_there_were_any() -> None:
    (spec,) = read('[[features]]\nkind = "scattering"')
    assert spec.model_dump() == {"kind": "scattering", "scales": 2, "angles": 8, "groups": 27}
    assert steps_of((spec,)) == (Scattering(),)


def test_reading_a_spec_does_not_load_torch() -> None:
    code = "import sys, sottovoce.runs.features_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
