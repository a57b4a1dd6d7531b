"""What a site allows: every refusal, at its boundary, and files that say too little or too much."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from one_site import TABLE

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, PolicyError, SottovoceError, UnknownNameError
from sottovoce.deployment.policy import Policy, Terms, from_table
from sottovoce.deployment.site import OwnRecords, read_site
from sottovoce.ledger.records import PendingCharge, Release
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.no_privacy import NoPrivacy
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import PrivacyEvent, Repeated
from sottovoce.protocol.channels.channel import Direct
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler

DELTA = 1e-6
BALL = L2Ball(dimension=8, radius=1.0)
EVENT = GaussHermite(input_domain=BALL, levels=4, noise_multiplier=3.0).privacy(Adjacency.ZERO_OUT)

POLICY = Policy(
    mechanisms=("gauss_hermite", "gaussian"),
    level=Unit.CLIENT,
    adjacency=Adjacency.ZERO_OUT,
    epsilon_per_round=1.0,
    epsilon_total=10.0,
    delta=DELTA,
    smallest_cohort=5,
)
TERMS = Terms(
    mechanism="gauss_hermite",
    level=Unit.CLIENT,
    adjacency=Adjacency.ZERO_OUT,
    channel=Direct(),
    cohort=5,
    grade="system",
)


def due(
    event: PrivacyEvent = EVENT, *, number: int = 1, uplink: int = 0, attempt: int = 0
) -> PendingCharge:
    release = Release(unit=Unit.CLIENT, run="run", client="ada", round=number, uplink=uplink)
    return PendingCharge(release=release, attempt=attempt, event=event)


def epsilon_of(*counted: tuple[PrivacyEvent, int]) -> float:
    return privacy_spent(compose_repeated(list(counted)), DELTA).epsilon


# -- terms -------------------------------------------------------------------------------------


def test_terms_within_the_policy_pass() -> None:
    POLICY.check_terms(TERMS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mechanism": "mvu"}, r"'mvu' is not allowed.*\('gauss_hermite', 'gaussian'\)"),
        ({"mechanism": "no_such"}, "'no_such' is not allowed"),
        ({"level": Unit.SAMPLE}, "'sample' is not allowed.*'client'"),
        ({"adjacency": Adjacency.REPLACE_ONE}, "replace-one is not allowed.*zero-out"),
        ({"cohort": 4}, "'smallest_cohort' is 5"),
        ({"cohort": -1}, "'smallest_cohort' is 5"),
        ({"channel": Shuffler(minimum_clients=2)}, "'trust_server' is false"),
        ({"channel": SecureSum(minimum_clients=2)}, "'trust_server' is false"),
        ({"mechanism": "gaussian"}, "'float_noise' is false"),
        ({"grade": "seeded"}, "'seeded_randomness' is false"),
    ],
)
def test_each_term_is_refused_by_itself(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PolicyError, match=reason):
        POLICY.check_terms(dataclasses.replace(TERMS, **change))


@pytest.mark.parametrize(
    ("allowed", "change"),
    [
        ("trust_server", {"channel": Shuffler(minimum_clients=2)}),
        ("trust_server", {"channel": SecureSum(minimum_clients=5)}),
        ("float_noise", {"mechanism": "gaussian"}),
        ("seeded_randomness", {"grade": "seeded"}),
    ],
)
def test_each_switch_allows_its_own_and_nothing_else(allowed: str, change: dict[str, Any]) -> None:
    for switch in ("trust_server", "float_noise", "seeded_randomness"):
        changes: dict[str, Any] = {switch: True}
        policy = dataclasses.replace(POLICY, **changes)
        terms = dataclasses.replace(TERMS, **change)
        if switch == allowed:
            policy.check_terms(terms)
        else:
            with pytest.raises(PolicyError, match=f"'{allowed}' is false"):
                policy.check_terms(terms)


@pytest.mark.parametrize("channel", [Shuffler(minimum_clients=6), SecureSum(minimum_clients=6)])
def test_a_trusted_server_cannot_promise_more_company_than_it_asks(
    channel: Shuffler | SecureSum,
) -> None:
    policy = dataclasses.replace(POLICY, trust_server=True)
    with pytest.raises(PolicyError, match="5 clients are asked, too few"):
        policy.check_terms(dataclasses.replace(TERMS, channel=channel))
    policy.check_terms(dataclasses.replace(TERMS, channel=channel, cohort=6))


def test_every_mechanism_that_draws_in_floating_point_needs_its_switch() -> None:
    for registration in registry.registrations():
        policy = dataclasses.replace(POLICY, mechanisms=(registration.kind,))
        terms = dataclasses.replace(TERMS, mechanism=registration.kind)
        if registration.build(registration.example_domain, registration.examples[0]).sampling == (
            "float"
        ):
            with pytest.raises(PolicyError, match="floating point"):
                policy.check_terms(terms)
        else:
            policy.check_terms(terms)


def test_a_policy_without_mechanisms_allows_none() -> None:
    with pytest.raises(PolicyError, match=r"\(none\)"):
        dataclasses.replace(POLICY, mechanisms=()).check_terms(TERMS)


# -- spending ----------------------------------------------------------------------------------


def test_a_round_may_cost_exactly_what_is_allowed_and_not_one_ulp_more() -> None:
    cost = epsilon_of((EVENT, 1))
    generous = dataclasses.replace(POLICY, epsilon_total=1e6)
    dataclasses.replace(generous, epsilon_per_round=cost).check_spending([], [due()])
    below = dataclasses.replace(generous, epsilon_per_round=math.nextafter(cost, 0.0))
    with pytest.raises(PolicyError, match="'epsilon_per_round' is"):
        below.check_spending([], [due()])


def test_a_round_with_two_uplinks_costs_both() -> None:
    one, both = epsilon_of((EVENT, 1)), epsilon_of((EVENT, 2))
    assert one < both
    dues = [due(uplink=0), due(uplink=1)]
    generous = dataclasses.replace(POLICY, epsilon_total=1e6)
    dataclasses.replace(generous, epsilon_per_round=both).check_spending([], dues)
    below = dataclasses.replace(generous, epsilon_per_round=math.nextafter(both, 0.0))
    with pytest.raises(PolicyError, match="'epsilon_per_round' is"):
        below.check_spending([], dues)


@pytest.mark.parametrize("before", [1, 7])
def test_a_plan_may_cost_exactly_the_total_and_not_one_ulp_more(before: int) -> None:
    total = epsilon_of((EVENT, before + 1))
    exact = dataclasses.replace(POLICY, epsilon_per_round=1e6, epsilon_total=total)
    exact.check_spending(
        [(EVENT, before)], [due()], exact.reserve_for_first_event(EVENT, before + 1)
    )
    below = dataclasses.replace(exact, epsilon_total=math.nextafter(total, 0.0))
    with pytest.raises(PolicyError, match="'epsilon_total' is"):
        below.check_spending(
            [(EVENT, before)], [due()], below.reserve_for_first_event(EVENT, before + 1)
        )


def test_events_that_the_server_could_choose_by_the_answers_are_held_to_the_filter() -> None:
    """What the charges come to as if fixed beforehand is not enough."""
    other = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=2.0)
    history = [(EVENT, 2), (other.privacy(Adjacency.ZERO_OUT), 2)]
    total = epsilon_of(*history, (EVENT, 1))
    policy = dataclasses.replace(POLICY, epsilon_per_round=1e6, epsilon_total=total)
    first = policy.reserve_for_first_event(EVENT, 3)
    with pytest.raises(PolicyError, match="that may depend on earlier answers"):
        policy.check_spending(history, [due()], first)
    more = dataclasses.replace(policy, epsilon_total=1.1 * total)
    more.check_spending(history, [due()], more.reserve_for_first_event(EVENT, 3))
    whole = dataclasses.replace(policy, epsilon_total=epsilon_of((EVENT, 9)))
    with pytest.raises(PolicyError, match="the first run's plan uses all of delta"):
        whole.check_spending(
            history[:1], [due(history[1][0])], whole.reserve_for_first_event(EVENT, 9)
        )


def test_what_costs_nothing_new_passes_however_little_is_left() -> None:
    dataclasses.replace(POLICY, epsilon_total=1e-9).check_spending([(EVENT, 100)], [])


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_second_attempt_is_refused_whatever_it_costs(attempt: int) -> None:
    generous = dataclasses.replace(POLICY, epsilon_per_round=1e6, epsilon_total=1e6)
    with pytest.raises(PolicyError, match=r"was charged before, and .* start a new run"):
        generous.check_spending([], [due(attempt=attempt)])
    generous.check_spending([], [due(attempt=attempt)], retries=True)


def test_no_privacy_is_never_within_a_limit() -> None:
    open_event = NoPrivacy(input_domain=BALL).privacy(Adjacency.ZERO_OUT)
    largest = dataclasses.replace(POLICY, epsilon_per_round=1e12, epsilon_total=1e12)
    with pytest.raises(PolicyError, match="costs epsilon infinite"):
        largest.check_spending([], [due(open_event)])


def test_repeated_events_of_one_due_count_as_often_as_they_say() -> None:
    twice = Repeated(event=EVENT, count=2)
    limit = epsilon_of((EVENT, 2))
    generous = dataclasses.replace(POLICY, epsilon_total=1e6)
    below = dataclasses.replace(generous, epsilon_per_round=math.nextafter(limit, 0.0))
    with pytest.raises(PolicyError, match="'epsilon_per_round' is"):
        below.check_spending([], [due(twice)])


# -- tables ------------------------------------------------------------------------------------


def test_a_table_says_what_the_policy_is() -> None:
    assert from_table(TABLE) == dataclasses.replace(POLICY, mechanisms=("gauss_hermite",))


@pytest.mark.parametrize("missing", list(TABLE))
def test_a_field_that_is_missing_is_named(missing: str) -> None:
    table = {name: value for name, value in TABLE.items() if name != missing}
    with pytest.raises(PolicyError, match=f"lacks '{missing}'; add what"):
        from_table(table)


def test_all_missing_fields_are_named_together() -> None:
    with pytest.raises(PolicyError, match=", ".join(f"'{name}'" for name in TABLE)):
        from_table({})


@pytest.mark.parametrize("extra", ["epsilon", "Level", "trust_servers"])
def test_an_unknown_key_is_refused_with_what_there_is(extra: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"key of \[policy\] '{extra}'.*epsilon_total"):
        from_table({**TABLE, extra: 1})


NOT_A_POSITIVE_NUMBER = [True, "1", None, [1.0], {}, 0, 0.0, -1.0, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("name", ["epsilon_per_round", "epsilon_total"])
@pytest.mark.parametrize("value", NOT_A_POSITIVE_NUMBER, ids=repr)
def test_epsilons_are_positive_finite_numbers(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name):
        from_table({**TABLE, name: value})


@pytest.mark.parametrize("value", [*NOT_A_POSITIVE_NUMBER, 1, 1.0, 2.0], ids=repr)
def test_delta_lies_strictly_between_0_and_1(value: Any) -> None:
    with pytest.raises(ParameterError, match="delta"):
        from_table({**TABLE, "delta": value})


@pytest.mark.parametrize("value", [0, -3, 2.0, 2.5, True, "5", None, [5], 2**40], ids=repr)
def test_the_smallest_cohort_is_a_count(value: Any) -> None:
    with pytest.raises(ParameterError, match="smallest_cohort"):
        from_table({**TABLE, "smallest_cohort": value})


@pytest.mark.parametrize("name", ["trust_server", "float_noise", "seeded_randomness"])
@pytest.mark.parametrize("value", [1, 0, "true", "false", None, [], {}], ids=repr)
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(PolicyError, match=rf"\[policy\] {name} must be true or false"):
        from_table({**TABLE, name: value})


@pytest.mark.parametrize("value", ["gauss_hermite", [1], [["gauss_hermite"]], None, {}, [None]])
def test_mechanisms_are_a_list_of_names(value: Any) -> None:
    with pytest.raises(PolicyError, match="must be a list of names"):
        from_table({**TABLE, "mechanisms": value})


def test_a_misspelt_mechanism_is_said_at_once() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gauss_hermite'"):
        from_table({**TABLE, "mechanisms": ["gaus_hermite"]})


@pytest.mark.parametrize("name", ["level", "adjacency"])
@pytest.mark.parametrize("value", ["record", "", 1, True, None, ["client"], {}], ids=repr)
def test_level_and_adjacency_are_among_the_known(name: str, value: Any) -> None:
    with pytest.raises(UnknownNameError, match=rf"{name} in \[policy\].*valid names"):
        from_table({**TABLE, name: value})


# -- files -------------------------------------------------------------------------------------

SITE = """
name = "ada"
[policy]
mechanisms = ["gauss_hermite"]
level = "client"
adjacency = "zero-out"
epsilon_per_round = 1.0
epsilon_total = 10.0
delta = 1e-6
smallest_cohort = 5
"""


def site_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "site.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_site_file_is_read(tmp_path: Path) -> None:
    text = SITE + '[data]\ndataset = "npz:x.npz"\nclasses = 3\n[link]\naddress = "a:1"\n'
    site = read_site(site_file(tmp_path, text))
    assert site.name == "ada"
    assert site.policy == dataclasses.replace(POLICY, mechanisms=("gauss_hermite",))
    assert site.records == OwnRecords(dataset="npz:x.npz", classes=3)
    (tmp_path / "x.npz").touch()  # beside site.toml, wherever the node runs
    beside = read_site(site_file(tmp_path, text)).records
    assert beside == OwnRecords(dataset=f"npz:{tmp_path / 'x.npz'}", classes=3)
    assert site.factories == ()
    assert site.ledger == tmp_path / "ledger.sqlite"
    assert read_site(site_file(tmp_path, SITE)).records is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'name', 'policy' are missing"),
        (SITE.replace('name = "ada"', ""), "'name' is missing"),
        (SITE.replace('"ada"', '""'), "'name': string should have at least 1 character"),
        (SITE.replace('"ada"', "3"), "'name' must be a valid string, got 3"),
        ('name = "ada"', "'policy' is missing"),
        ('name = "ada"\npolicy = 3', "'policy' must be a table"),
        ('name = "ada"\n[policy]', "lacks 'mechanisms'"),
        (SITE + "seeded = true", "unknown key of .policy. 'seeded'; did you mean"),
        ("nam = 3\n" + SITE, "unknown key 'nam'; did you mean 'name'"),
        (SITE.replace("1e-6", "nan"), "delta must lie strictly between"),
        (SITE.replace("10.0", "inf"), "epsilon_total must be a finite number"),
        (SITE.replace("10.0", "true"), "epsilon_total must be a number"),
        (SITE.replace("gauss_hermite", "gauss"), "unknown mechanism 'gauss'"),
        ("data = 3\n" + SITE, "'data' must be a table"),
        (SITE + "[data]\n", "'data.dataset' is missing"),
        (SITE + "[data]\ndataset = 3\n", "'data.dataset' must be a valid string"),
        (SITE + "[data]\ndatset = 'x'\n", r"unknown key 'datset'; did you mean .*in \[data\]"),
        (SITE + "[data]\ndataset = 'x'\nclasses = 1\n", "'data.classes' must .* equal to 2"),
        (SITE + "[data]\ndataset = 'x'\nclasses = true\n", "'data.classes' must .* valid integer"),
        (SITE + "[data]\ndataset = 'x'\ncsv = 3\n", "'data.csv' must be a table"),
        ("factories = 'os:getcwd'\n" + SITE, "'factories' must be a list"),
        ("factories = [1]\n" + SITE, r"'factories\[0\]' must be a valid string"),
        ("name = ", "not valid TOML"),
        (b"name = '\xff'", "not valid TOML"),
    ],
)
def test_a_site_file_that_is_wrong_is_refused_by_name(
    tmp_path: Path, text: str | bytes, reason: str
) -> None:
    path = site_file(tmp_path, text)
    with pytest.raises(PolicyError, match=reason) as caught:
        read_site(path)
    assert str(caught.value).startswith(str(path))


def test_without_a_file_nothing_is_answered(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="without a policy nothing is answered"):
        read_site(tmp_path / "site.toml")
    with pytest.raises(PolicyError, match="cannot read the site's file"):
        read_site(tmp_path)


@pytest.mark.parametrize("name", ["epsilon_per_round", "epsilon_total", "delta", "smallest_cohort"])
@pytest.mark.parametrize("value", ["true", "-1", "0", "nan", "inf", "'1'", "[1]", "1979-05-27"])
def test_whatever_a_file_says_is_a_policy_or_a_policy_error(
    tmp_path: Path, name: str, value: str
) -> None:
    lines = [f"{name} = {value}" if row.startswith(name) else row for row in SITE.splitlines()]
    with pytest.raises(SottovoceError, match=name) as caught:
        read_site(site_file(tmp_path, "\n".join(lines)))
    assert type(caught.value) is PolicyError
