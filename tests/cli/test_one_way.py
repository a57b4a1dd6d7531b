"""Every command does a thing in the same way: the same flags, the same JSON, the same errors."""

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest

from sottovoce.cli.main import parser

# They hold the terminal until they are interrupted, or print a script.
WITHOUT_JSON = {"explore", "completion", "deploy link", "deploy node", "deploy relay"} | {
    "deploy collector"
}
# What an option counts or names may differ by command, never what kind of value it takes.
MEANINGS = {"--bits", "--clients", "--confidence", "--delta", "--dimension", "--epochs"} | {
    *("--epsilon", "--header", "--mechanism", "--method", "--out", "--param", "--plot"),
    *("--rounds", "--seed", "--seeds", "--clip-norm", "--clip-geometry", "--quantiles", "--days"),
    *("--as", "--host", "--address", "--digest", "--channel", "--add", "--set"),
}


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, inner in getattr(command, "commands", {}).items():
        if getattr(inner, "commands", None):
            yield from walk(inner, (*path, name))
        else:
            yield " ".join((*path, name)), inner


COMMANDS = dict(walk(parser()))
OPTIONS = [
    (path, option)
    for path, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option"
]


def test_every_command_is_found() -> None:
    assert {"run", "estimate mean", "deploy ask", "ledger verify", "audit run"} <= COMMANDS.keys()


def test_whatever_ends_with_a_result_prints_it_as_json_too() -> None:
    with_json = {path for path, option in OPTIONS if "--json" in option.opts}
    assert COMMANDS.keys() - with_json == WITHOUT_JSON


def test_json_is_the_last_option() -> None:
    for path, command in COMMANDS.items():
        names = [one.opts[0] for one in command.params]
        assert "--json" not in names[:-1], path


def test_an_option_takes_the_same_kind_of_value_wherever_it_is() -> None:
    kinds: dict[str, set[str]] = {}
    for _, option in OPTIONS:
        kinds.setdefault(option.opts[0], set()).add(option.type.name)
    # A number of bits is whole, but for a plan's, where it is an average; --add names and a path.
    del kinds["--bits"], kinds["--add"]
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


def test_an_option_says_the_same_wherever_it_means_the_same() -> None:
    helps: dict[str, set[str]] = {}
    for path, option in OPTIONS:
        if not path.startswith(("benchmark ", "ledger ")):
            helps.setdefault(option.opts[0], set()).add(str(getattr(option, "help", "")))
    differing = {name for name, found in helps.items() if len(found) > 1}
    assert differing <= MEANINGS


def test_every_option_and_argument_is_explained() -> None:
    for path, command in COMMANDS.items():
        assert command.help, path
        for one in command.params:
            if one.name != "help":
                assert getattr(one, "help", None), f"{path} {one.name}"


def test_options_are_words_with_hyphens() -> None:
    for path, option in OPTIONS:
        for name in (*option.opts, *option.secondary_opts):
            assert name.startswith("--"), path
            assert name == name.lower().replace("_", "-"), path


@pytest.mark.parametrize("path", sorted(COMMANDS.keys() - WITHOUT_JSON))
def test_a_mistake_is_one_line_and_exit_2_and_json_where_json_was_asked_for(
    cli: Any, path: str
) -> None:
    result = cli(*path.split(), "--no-such-option", "--json")
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert json.loads(result.out) == {"error": line.removeprefix("error: ")}


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_without_json_a_mistake_leaves_stdout_alone(cli: Any, path: str) -> None:
    result = cli(*path.split(), "--no-such-option")
    assert (result.code, result.out) == (2, "")
