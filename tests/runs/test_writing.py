"""A spec written as TOML and read again is the same spec."""

import tomllib
from pathlib import Path

import pytest
from specs import small_table

from sottovoce.runs.loading import load, parse, toml_text

EXAMPLES = sorted(Path(__file__).parents[2].joinpath("examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_comes_back_as_it_was(path: Path) -> None:
    spec = load(path)
    assert parse(tomllib.loads(toml_text(spec.plain()))) == spec


def test_names_that_need_quotes_come_back() -> None:
    name = 'a "quoted" <name> \x7f é 🙂'
    sites = {"clinic.one": 3, "clinic two": 4, "plain-3": 5}
    spec = parse(small_table(name=name, data={"dataset": "digits", "sites": sites}))
    again = parse(tomllib.loads(toml_text(spec.plain())))
    assert again == spec
    assert (again.name, again.data.sites) == (name, sites)
