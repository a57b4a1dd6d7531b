import json
import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from sottovoce.learning.features import FeatureStep, Flatten, files_of
from sottovoce.runs.loading import parse_text
from sottovoce.runs.spec import FeatureSpec
from sottovoce_papers.features.precondition_step import Precondition
from sottovoce_papers.features.scattering_step import Scattering

TABLES: TypeAdapter[tuple[FeatureSpec, ...]] = TypeAdapter(tuple[FeatureSpec, ...])


def opened(specs: tuple[FeatureSpec, ...]) -> tuple[FeatureStep, ...]:
    return tuple(spec.build() for spec in specs)


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
    assert opened(specs) == (
        Scattering(scales=2, angles=11, groups=6),
        Precondition(images="strokes", count=8000, components=100, exponent=0.5, bias=0.1, seed=0),
        Flatten(),
    )


PUBLIC = '[[features]]\nkind = "precondition"\ncount = 10\ncomponents = 3\nimages = '


def test_a_step_says_which_files_it_reads() -> None:
    drawn, read_from = opened((*read(PUBLIC + '"dead_leaves"'), *read(PUBLIC + '"public/a.npz"')))
    assert files_of(drawn) == files_of(Flatten()) == ()
    assert files_of(read_from) == ("public/a.npz",)


def test_unknown_images_are_answered_with_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match="did you mean 'strokes'"):
        read(PUBLIC + '"stroke"')


def test_whole_numbers_are_written_as_the_floats_that_they_stand_for() -> None:
    (spec,) = read(PUBLIC + '"strokes"\nexponent = 1\nbias = 0')
    assert json.dumps([spec.parameters["exponent"], spec.parameters["bias"]]) == "[1.0, 0.0]"


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
    assert opened(specs) == (Scattering(views=("opponent", "log")),)
    assert specs[0].model_dump(mode="json")["views"] == ["opponent", "log"]


def test_specs_without_views_are_written_as_before_there_were_any() -> None:
    (spec,) = read('[[features]]\nkind = "scattering"')
    assert spec.model_dump() == {"kind": "scattering", "scales": 2, "angles": 8, "groups": 27}
    assert opened((spec,)) == (Scattering(),)


def test_reading_a_spec_does_not_load_torch() -> None:
    code = (
        "import sys; from sottovoce.runs.spec import FeatureSpec\n"
        "FeatureSpec.model_validate({'kind': 'scattering'})\n"
        "FeatureSpec.model_validate({'kind': 'precondition', 'images': 'strokes', 'count': 9, "
        "'components': 2})\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
