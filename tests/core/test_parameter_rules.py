"""The rules of parameters, and that a refusal names value, rule and remedy."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, SottovoceError

NOT_NUMBERS = [True, False, "1.0", None, [1.0], 1j]


def message_of(check: Callable[[], object]) -> str:
    with pytest.raises(ParameterError) as caught:
        check()
    return str(caught.value)


@pytest.mark.parametrize("value", [0, 0.0, -0.0, -1, -1e-300, math.nan, math.inf, -math.inf, 1e9])
def test_an_epsilon_outside_its_range_is_refused_with_value_rule_and_remedy(value: float) -> None:
    message = message_of(lambda: parameter_rules.epsilon(value))
    assert message == (
        f"epsilon must be a finite number above 0 and at most 1000, got {value!r}; "
        "to run without a guarantee use the mechanism 'no_privacy'"
    )


@pytest.mark.parametrize("value", [0, 0.0, -1, -1e-300, 1, 1.0, 1e9, math.nan, math.inf, -math.inf])
def test_a_delta_outside_its_range_is_refused_with_value_rule_and_remedy(value: float) -> None:
    message = message_of(lambda: parameter_rules.delta(value))
    assert message == (
        f"delta must lie strictly between 0 and 1, got {value!r}; "
        "choose a delta well below 1 / (number of protected people), such as 1e-5"
    )


@pytest.mark.parametrize("value", NOT_NUMBERS)
@pytest.mark.parametrize("rule", [parameter_rules.epsilon, parameter_rules.delta])
def test_what_is_no_number_is_refused_with_its_repr(
    rule: Callable[[float], float], value: float
) -> None:
    assert message_of(lambda: rule(value)).endswith(f"must be a number, got {value!r}")


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_every_rule_for_numbers_refuses_what_is_no_number(value: float) -> None:
    for message in (
        message_of(lambda: parameter_rules.positive("x", value)),
        message_of(lambda: parameter_rules.fraction("x", value)),
        message_of(lambda: parameter_rules.finite("x", value)),
        message_of(lambda: parameter_rules.noise_multiplier(value)),
    ):
        assert message.endswith(f"must be a number, got {value!r}")


@given(st.floats(min_value=1e-300, max_value=1000.0))
@settings(deadline=None)
def test_an_epsilon_in_range_is_returned_unchanged(value: float) -> None:
    assert parameter_rules.epsilon(value) == value


@given(st.floats(min_value=1e-300, max_value=1.0, exclude_max=True))
@settings(deadline=None)
def test_a_delta_in_range_is_returned_unchanged(value: float) -> None:
    assert parameter_rules.delta(value) == value


def test_the_largest_epsilon_is_allowed_and_the_next_float_is_not() -> None:
    assert parameter_rules.epsilon(1000) == 1000.0
    message_of(lambda: parameter_rules.epsilon(math.nextafter(1000.0, math.inf)))


def test_an_accepted_integer_becomes_a_float() -> None:
    assert type(parameter_rules.epsilon(3)) is float
    assert type(parameter_rules.positive("x", 3)) is float
    assert type(parameter_rules.finite("x", 3)) is float


def test_the_refusal_carries_the_name_it_was_asked_about() -> None:
    assert message_of(lambda: parameter_rules.epsilon(0, "target_epsilon")).startswith(
        "target_epsilon "
    )
    assert message_of(lambda: parameter_rules.delta(0, "delta_total")).startswith("delta_total ")


@pytest.mark.parametrize("value", [0.0, 9.9e-6, -1.0, 1.1e12, math.nan, math.inf])
def test_a_noise_multiplier_outside_its_range_is_refused(value: float) -> None:
    message = message_of(lambda: parameter_rules.noise_multiplier(value))
    assert f"between 1e-5 and 1e12, got {value!r}; calibrate it to an epsilon" in message


@pytest.mark.parametrize("value", [1e-5, 1.0, 1e12])
def test_a_noise_multiplier_in_range_is_returned(value: float) -> None:
    assert parameter_rules.noise_multiplier(value) == value


@pytest.mark.parametrize("value", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_a_fraction_lies_above_0_and_up_to_1(value: float) -> None:
    assert parameter_rules.fraction("share", 1.0) == 1.0
    assert "share must be a finite number above 0 and at most 1" in message_of(
        lambda: parameter_rules.fraction("share", value)
    )


@pytest.mark.parametrize("value", [1, 10, np.int64(5), np.uint8(1)])
def test_integers_in_range_become_python_integers(value: int) -> None:
    number = parameter_rules.integer("count", value, low=1, high=10)
    assert type(number) is int
    assert number == value


@pytest.mark.parametrize(
    "value", [0, 11, -1, 2**64, 1.0, 2.5, math.nan, True, np.True_, np.float64(3.0), "3", None]
)
def test_what_is_no_integer_in_range_is_refused_with_value_rule_and_remedy(value: int) -> None:
    message = message_of(
        lambda: parameter_rules.integer("count", value, low=1, high=10, remedy="give a small one")
    )
    assert message == f"count must be an integer from 1 to 10, got {value!r}; give a small one"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    assert (
        message_of(lambda: parameter_rules.finite("x", value)) == f"x must be finite, got {value!r}"
    )


def test_a_refusal_is_both_a_sottovoce_error_and_a_value_error() -> None:
    assert issubclass(ParameterError, SottovoceError)
    assert issubclass(ParameterError, ValueError)
