"""Mechanisms that the option `--add` enters into an experiment, such as a user's own plug-ins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.mechanisms import registry
from sottovoce.runs.loading import parse_assignment

_OPTION, _FORM = "--add", "--add mechanism=KIND or --add mechanism='{kind = \"KIND\", ...}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedMechanism:
    """A registered mechanism to compare with those of an experiment, calibrated like them.

    Attributes:
        kind: The registered name.
        parameters: Every parameter except the one that calibration finds.
        text: What was typed after `--add`.
    """

    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def name(self) -> str:
        """The name in tables and pictures: the kind with the parameters that were given."""
        given = ", ".join(f"{name} = {value}" for name, value in self.parameters.items())
        return f"{self.kind} ({given})" if given else self.kind

    @property
    def registration(self) -> registry.Registration:
        """The registration of the kind."""
        return registry.find(self.kind)

    @property
    def searched(self) -> registry.CalibratedParameter:
        """The parameter that calibration finds."""
        found = self.registration.calibrated_parameter
        assert found is not None, "parse_added has checked it"
        return found

    @property
    def table(self) -> dict[str, Any]:
        """The table `mechanism` of a spec."""
        return {"kind": self.kind, **self.parameters}


def parse_added(texts: Sequence[str]) -> tuple[AddedMechanism, ...]:
    """Return the mechanisms that the values of `--add` name, after checking their parameters.

    Raises:
        ConfigError: A text has another form.
        ParameterError: The mechanism cannot be calibrated, or a parameter is missing or given that
            calibration finds.
        UnknownNameError: There is no such mechanism or parameter.
    """
    found = tuple(_parse(text) for text in texts)
    for one in found:
        _check(one)
        if found.count(one) > 1:
            raise ConfigError(f"{_OPTION} gives '{one.text}' twice; give it once")
    return found


def _parse(text: str) -> AddedMechanism:
    key, value = parse_assignment(text, _OPTION)
    table = {"kind": value} if isinstance(value, str) else value
    if key != "mechanism" or not isinstance(table, dict) or not isinstance(table.get("kind"), str):
        raise ConfigError(f"{_OPTION} adds a mechanism, got '{text}'; write {_FORM}")
    given = {name: value for name, value in table.items() if name != "kind"}
    return AddedMechanism(kind=table["kind"], parameters=given, text=text)


def _check(added: AddedMechanism) -> None:
    searched = added.registration.calibrated_parameter
    if searched is None:
        raise ParameterError(
            f"mechanism '{added.kind}' names no parameter that calibration can set, so it cannot "
            "be compared at a budget; register it with calibrated_parameter, or add another one"
        )
    if searched.parameter in added.parameters:
        raise ParameterError(
            f"{_OPTION} gives '{searched.parameter}' of '{added.kind}', which the budget "
            "determines; leave it out"
        )
    added.registration.check_complete({**added.parameters, searched.parameter: None})
