"""One account over several ledgers: nothing that was released is left out, no copy counts twice."""

import math
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import call, printed_json
from ledger_files import make_version_2
from specs import small_spec

import sottovoce
from sottovoce import ledger_total, ledger_totals
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.display import show_epsilon
from sottovoce.core.domains import Vector
from sottovoce.core.errors import (
    AdjacencyMismatchError,
    LedgerError,
    ParameterError,
    UnknownNameError,
    UnsupportedEventError,
)
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.accounting import privacy_spent, show_delta
from sottovoce.privacy.compositions import as_replace_one, compose_repeated
from sottovoce.privacy.events import (
    Allocated,
    FiniteTable,
    GaussianNoise,
    PrivacyEvent,
    PureDp,
    RenyiCurve,
    Sampled,
    Shuffled,
    SummedBits,
    ZeroConcentrated,
    basic_counts,
)
from sottovoce.runs.runner import run

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DELTA = 1e-5
EVENT = GaussianNoise(mu=0.3, adjacency=ZERO_OUT)
OTHER = GaussianNoise(mu=0.4, adjacency=ZERO_OUT)
OWN_NAME = f"{'0' * 15}a-0123abcd"  # as a run has it, whose name is partly drawn
SPEC_NAME = f"{'0' * 15}a"  # as every run of one spec has it, if its randomness is seeded

Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def make(
        name: str,
        rounds: Sequence[int] = (1, 2),
        *,
        client: str = "ann",
        event: PrivacyEvent = EVENT,
        run: str = OWN_NAME,
        unit: Unit = Unit.CLIENT,
        says: str | None = "a message",
        commitment: bytes | None = None,
    ) -> Path:
        """Charges of some rounds, each with a message unless it `says` nothing."""
        path = tmp_path / name
        with Ledger(path, create=True) as ledger:
            for number in rounds:
                asked = Release(unit=unit, run=run, client=client, round=number, uplink=0)
                charge = ledger.charge(asked, 0, event)
                if says is not None:
                    ledger.store_message(charge, f"{says} {number}".encode(), commitment)
        return path

    return make


def copied(path: Path, name: str) -> Path:
    copy = path.with_name(name)
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return copy


def gaussian(*squares: float) -> float:
    """The exact epsilon of Gaussian noise whose squared distances add up."""
    whole = GaussianNoise(mu=math.sqrt(sum(squares)), adjacency=ZERO_OUT)
    return privacy_spent(whole, DELTA).epsilon


def test_the_charges_of_all_ledgers_are_composed_and_not_their_epsilons(made: Made) -> None:
    first, second = made("first"), made("second", (1, 2, 3), event=OTHER, run="another")
    found = ledger_total([first, second], delta=DELTA)
    assert [(one.charges, one.counted) for one in found.ledgers] == [(2, 2), (3, 3)]
    assert found.epsilon == pytest.approx(gaussian(2 * 0.09, 3 * 0.16), rel=1e-9)
    assert found.epsilon < sum(one.epsilon for one in found.ledgers)
    assert (found.adjacency, found.unit, found.notes) == (ZERO_OUT, Unit.CLIENT, ())


def test_pure_charges_add_up_at_delta_zero_as_the_decimals_they_are(made: Made) -> None:
    tenth, fifth = (PureDp(epsilon=one, adjacency=REPLACE_ONE) for one in (0.1, 0.2))
    first = made("first", event=tenth, run="estimate-" + "0" * 16, says=None)
    second = made("second", (1,), event=fifth, run="estimate-" + "1" * 16, says=None)
    found = ledger_total([first, second])
    assert (found.epsilon, found.delta, found.accountant) == (0.4, 0.0, "pure")
    assert found.pure_epsilon == 0.4
    with pytest.raises(ParameterError, match=r"give one \(--delta\)"):
        ledger_total([first, made("third", event=EVENT)], adjacency="replace-one")


def test_a_ledger_by_two_paths_a_copy_and_an_older_copy_count_once(made: Made) -> None:
    path = made("ledger.sqlite")
    older = copied(path, "older")
    made("ledger.sqlite", (3,))
    link = path.with_name("link")
    link.symlink_to(path)
    found = ledger_total([older, path, link, copied(path, "copy")], delta=DELTA)
    assert [one.counted for one in found.ledgers] == [0, 3, 0, 0]
    assert found.epsilon == pytest.approx(gaussian(3 * 0.09), rel=1e-9)
    assert f"2 charges of {older} are also in {path}, and are counted once" in found.notes


@pytest.mark.parametrize("answers", [8, 1])
def test_ledgers_that_part_count_in_full_whatever_they_answered(made: Made, answers: int) -> None:
    """Answers of one byte agree by chance, all of them if they are few, and are two releases."""
    one = PureDp(epsilon=1.0, adjacency=ZERO_OUT)
    path = made("ledger.sqlite", (0,), event=one)
    other = copied(path, "other")
    for name in ("ledger.sqlite", "other"):
        made(name, range(1, answers + 1), event=one, says="")
    found = ledger_total([path, other])
    # One shared release and two ends. The beginning counts twice, for nothing shows how long it is.
    assert found.epsilon >= 1 + 2 * answers
    assert [one.counted for one in found.ledgers] == [answers + 1] * 2


def test_a_message_that_version_1_discarded_may_have_been_sent(made: Made) -> None:
    path = made("ledger.sqlite", (1,), says=None)
    other = copied(path, "other")
    with Ledger(path) as ledger, ledger.transaction():
        ledger._append(
            "messages", "charge, commitment, digest, message", [((1, None, None), (1, *[None] * 3))]
        )
    with Ledger(other) as ledger:
        charge = ledger.latest(
            Release(unit=Unit.CLIENT, run=OWN_NAME, client="ann", round=1, uplink=0)
        )
        assert charge is not None
        ledger.store_message(charge, b"another")
    # Two messages under one charge.
    assert ledger_total([path, other], delta=DELTA).charges == 2


def test_ledgers_of_earlier_versions_are_one_only_if_they_are_one_file(made: Made) -> None:
    """Two runs of one spec began with the same charge, from which their identity follows."""
    path = made("ledger.sqlite", (1,))
    make_version_2(path)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())  # what another run of one bit may well have written
    link = path.with_name("link")
    link.symlink_to(path)
    found = ledger_total([path, other, link], delta=DELTA)
    assert [one.counted for one in found.ledgers] == [1, 1, 0]
    # Nor is a copy that this version made told from another run.
    backup = path.with_name("backup")
    assert call("ledger", "backup", str(path), str(backup)).code == 0
    found = ledger_total([path, backup], delta=DELTA)
    assert [one.counted for one in found.ledgers] == [1, 1]
    assert any("copy of a ledger of an earlier version" in note for note in found.notes)


def test_three_ends_of_a_charge_without_a_message_are_two_releases(made: Made) -> None:
    """A copy from before a message was stored is the beginning of either, and joins no two."""
    path = made("a", (1,))
    with Ledger(path, create=True) as ledger:
        ledger.charge(
            Release(unit=Unit.CLIENT, run=OWN_NAME, client="ann", round=2, uplink=0), 0, EVENT
        )
    ends = [copied(path, name) for name in ("b", "c")]
    for end in ends:
        with Ledger(end) as ledger:
            asked = Release(unit=Unit.CLIENT, run=OWN_NAME, client="ann", round=2, uplink=0)
            charge = ledger.latest(asked)
            assert charge is not None
            ledger.store_message(charge, end.name.encode())
    for order in ([path, *ends], [*ends, path], [ends[0], path, ends[1]]):
        assert ledger_total(order, delta=DELTA).charges == 4  # of 3 releases


def test_two_runs_of_one_spec_are_two(made: Made) -> None:
    """Their charges agree, and equal messages of few bits prove nothing."""
    first, second = made("first", run=SPEC_NAME), made("second", run=SPEC_NAME)
    found = ledger_total([first, second], delta=DELTA)
    assert found.charges == 4
    assert any("both are counted" in note for note in found.notes)


def test_one_seed_on_two_inputs_has_no_bound(made: Made) -> None:
    """The same noise on changed data: the difference of the two is that of the data."""
    first, again, changed = (
        made(name, run="a name", commitment=name[:4].encode()) for name in ("same", "same 2", "new")
    )
    assert math.isfinite(ledger_total([first, again], delta=DELTA).epsilon)
    found = ledger_total([first, changed], delta=DELTA)
    assert math.isinf(found.epsilon)
    assert any("the same noise" in note for note in found.notes)
    # Nothing is stored of what is added to a sum: two runs of a seeded spec may be on any data.
    sums = [made(name, run=SPEC_NAME, says=None) for name in ("sum", "sum 2")]
    assert math.isinf(ledger_total(sums, delta=DELTA).epsilon)
    assert math.isfinite(ledger_total([sums[0], copied(sums[0], "copy")], delta=DELTA).epsilon)
    pure = PureDp(epsilon=1.0, adjacency=ZERO_OUT)
    bits = [made(name, run=SPEC_NAME, says=None, event=pure) for name in ("bit", "bit 2")]
    assert math.isinf(ledger_total(bits).epsilon)


def hidden_events(adjacency: Adjacency) -> list[PrivacyEvent]:
    """Events that something hides, also where that gains nothing."""
    noise = GaussianNoise(mu=0.5, adjacency=adjacency)
    pure = PureDp(epsilon=1.0, adjacency=adjacency)
    return [
        *(
            Sampled(event=event, rate=rate, scheme="poisson", hidden_by="own-records")
            for event in (pure, noise)
            for rate in (0.1, 0.999999)
        ),
        Sampled(event=noise, rate=0.1, scheme="poisson", hidden_by="central-noise"),
        *(Shuffled(event=pure, clients=clients) for clients in (2, 10_000)),
        SummedBits(shift=0.2, dimension=1, logit_bound=1.0, clients=9, adjacency=adjacency),
        Allocated(event=noise, steps=10),
    ]


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
@pytest.mark.parametrize("case", ["alone", "one seed", "two ledgers", "two names"])
def test_if_all_is_seen_no_total_is_less(made: Made, adjacency: Adjacency, case: str) -> None:
    for number, event in enumerate(hidden_events(adjacency)):
        run = SPEC_NAME if case == "one seed" else OWN_NAME
        first = made(f"{number}", event=event, run=run, commitment=b"one input")
        paths, names = [first], {str(first): ["ann"]}
        if case == "two names":
            made(f"{number}", event=event, client="bob", says=None)
            names = {str(first): ["ann", "bob"]}
        elif case != "alone":
            paths.append(made(f"{number} 2", event=event, run=run, commitment=b"another"))
        for delta in (DELTA, None):
            try:
                found = ledger_total(paths, names=names, delta=delta)
            except ParameterError:  # not all of them are pure
                assert delta is None
                continue
            assert found.local_epsilon is not None
            assert found.local_epsilon >= found.epsilon
            if case == "one seed":
                assert math.isinf(found.epsilon)


def test_the_commands_have_no_bound_for_one_seed_with_everything_seen(made: Made) -> None:
    event = Sampled(event=EVENT, rate=0.1, scheme="poisson", hidden_by="own-records")
    paths = [made(name, event=event, run=SPEC_NAME, commitment=name.encode()) for name in "ab"]
    words = ("ledger", "total", *map(str, paths), "--delta", "1e-5")
    assert "message, sender and sample: epsilon infinite" in call(*words).text
    (row,) = [line for line in call(*words, "--every").text.splitlines() if "ann" in line]
    assert row.count("infinite") == 2


def test_two_runs_of_one_spec_have_names_of_their_own(tmp_path: Path) -> None:
    spec = small_spec(rounds=1, randomness="system")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        run(spec, folder)
    shutil.copytree(first, tmp_path / "copy")
    ledgers = [first, second, tmp_path / "copy"]
    found = ledger_total(ledgers, client="client-0000", delta=DELTA)
    assert [one.counted for one in found.ledgers] == [1, 1, 0]
    assert not any("both are counted" in note for note in found.notes)


def test_a_server_and_a_site_that_record_one_run_are_both_counted_and_named(made: Made) -> None:
    server, site = made("server", (1, 2, 3), says=None), made("site", (1, 2))
    found = ledger_total([site, server], delta=DELTA)
    assert found.charges == 5
    assert any(
        f"2 charges of {server}" in note and "server's account" in note for note in found.notes
    )
    question = made("question", (0,), run="question-" + "0" * 12 + "-" + "1" * 8, says=None)
    answer = made("answer", (0,), run="question-" + "0" * 12 + "-" + "1" * 8 + "/" + "2" * 16)
    assert ledger_total([question, answer], delta=DELTA).notes
    assert ledger_total([server, copied(server, "copy")], delta=DELTA).charges == 3


def test_two_messages_of_a_round_are_hidden_by_no_channel(made: Made) -> None:
    local = PureDp(epsilon=1.0, adjacency=ZERO_OUT)
    event = Shuffled(event=local, clients=10_000)
    path = made("ledger.sqlite", (1,), event=event)
    other = made("other", (1,), event=event, says="another end")
    alone = ledger_total([path], delta=DELTA)
    assert alone.local_epsilon == pytest.approx(1.0, abs=1e-4)
    assert alone.epsilon < 0.2
    assert any("shuffler" in assumption for assumption in alone.assumptions)
    both = ledger_total([path, other], delta=DELTA)
    assert both.epsilon == pytest.approx(2.0, abs=1e-4)
    assert any("without amplification" in note for note in both.notes)
    # One person under two names has both messages in one shuffle, which was to hide one.
    made("ledger.sqlite", (1,), event=event, client="bob")
    names = {str(path): ["ann", "bob"]}
    assert ledger_total([path], names=names, delta=DELTA).epsilon == pytest.approx(2.0, abs=1e-4)
    assert ledger_total([path], client="bob", delta=DELTA).epsilon < 0.2


def test_a_message_in_two_sums_is_hidden_by_neither(made: Made) -> None:
    """The others drew anew in each copy of the run: ann's one bit is in two sums."""
    event = SummedBits(shift=0.2, dimension=1, logit_bound=1.0, clients=100, adjacency=ZERO_OUT)
    path = made("ledger.sqlite", (1,), event=event)
    other = copied(path, "other")
    made("ledger.sqlite", (1,), event=event, client="bob", says="one end")
    made("other", (1,), event=event, client="bob", says="another end")
    found = ledger_total([path, other], client="ann", delta=DELTA)
    local = privacy_spent(event.local(), DELTA).epsilon
    assert found.epsilon >= local > ledger_total([path], client="ann", delta=DELTA).epsilon
    # A copy that neither sum is of changes nothing.
    assert (
        ledger_total([path, copied(path, "copy")], client="ann", delta=DELTA).epsilon
        == ledger_total([path], client="ann", delta=DELTA).epsilon
    )


@pytest.mark.parametrize("run", [OWN_NAME, SPEC_NAME])
def test_a_sum_without_a_client_shows_its_message_in_the_sum_with_it(made: Made, run: str) -> None:
    """The others' messages are the same in both, stored before the copy or drawn from one seed."""
    event = Shuffled(event=PureDp(epsilon=2.0, adjacency=ZERO_OUT), clients=10_000)
    path = made("ledger.sqlite", (1,), event=event, run=run, client="bob", commitment=b"same")
    if run == OWN_NAME:
        other = copied(path, "other")
    else:
        other = made("other", (1,), event=event, run=run, client="bob", commitment=b"same")
    made("ledger.sqlite", (1,), event=event, run=run)
    made("other", (2,), event=event, run=run, client="bob")
    assert ledger_total([path], client="ann", delta=DELTA).epsilon < 1.0
    found = ledger_totals([path, other], delta=DELTA)["ann"]
    assert found.epsilon == pytest.approx(2.0, abs=1e-3)
    noise = made("noise", (1,), run=SPEC_NAME, says=None)
    made("noise", (1,), run=SPEC_NAME, says=None, client="bob")
    others = made("noise 2", (1,), run=SPEC_NAME, says=None, client="bob")
    assert math.isinf(ledger_totals([noise, others], delta=DELTA)["ann"].epsilon)


def test_two_names_in_one_run_are_hidden_in_no_round_of_it(made: Made) -> None:
    """A secret order shuffles a whole epoch: messages of two rounds are in one shuffle."""
    event = Shuffled(event=PureDp(epsilon=2.0, adjacency=ZERO_OUT), clients=10_000)
    path = made("ledger.sqlite", (1,), event=event)
    made("ledger.sqlite", (2,), event=event, client="bob")
    found = ledger_total([path], names={str(path): ["ann", "bob"]}, delta=DELTA)
    assert found.epsilon == pytest.approx(4.0, abs=1e-3)
    assert found.ledgers[0].epsilon == found.epsilon
    assert found.local_epsilon == pytest.approx(4.0, abs=1e-3)


@pytest.mark.parametrize(
    "event",
    [
        EVENT,
        Sampled(event=EVENT, rate=0.1, scheme="poisson", hidden_by="central-noise"),
        Allocated(event=EVENT, steps=10),
    ],
)
def test_two_names_in_one_sum_share_its_noise(made: Made, event: PrivacyEvent) -> None:
    """Distances add, to 2 mu, where two releases are mu sqrt 2; of samples nothing is proved."""
    path = made("ledger.sqlite", (1,), event=event, run=SPEC_NAME, says=None)
    made("ledger.sqlite", (1,), event=event, run=SPEC_NAME, says=None, client="bob")
    found = ledger_total([path], names={str(path): ["ann", "bob"]}, delta=DELTA)
    assert math.isinf(found.epsilon)
    assert math.isinf(found.ledgers[0].epsilon)
    assert found.notes
    assert math.isfinite(ledger_total([path], client="ann", delta=DELTA).epsilon)


def test_what_was_charged_rests_on_promises_that_no_conversion_takes_away(made: Made) -> None:
    event = Sampled(event=EVENT, rate=0.1, scheme="poisson", hidden_by="central-noise")
    path = made("ledger.sqlite", (1,), event=event, run=SPEC_NAME, says=None)
    found = ledger_total([path], delta=DELTA, adjacency="replace-one")
    assert any("a trusted party adds the noise" in one for one in found.assumptions)
    assert found.local_epsilon == math.inf  # no message has noise of its own


def test_whose_account_it_is_must_be_clear(made: Made) -> None:
    first, second = made("first"), made("second", client="bob", run="another")
    made("first", client="cleo", run="third")
    with pytest.raises(LedgerError, match="2 clients"):
        ledger_total([first, second], delta=DELTA)
    with pytest.raises(UnknownNameError, match=r"second.*unknown client 'ann'"):
        ledger_total([first, second], client="ann", delta=DELTA)
    found = ledger_total([first, second], client="ann", names={str(second): ["bob"]}, delta=DELTA)
    assert [one.account for one in found.ledgers] == ["ann", "bob"]
    assert found.charges == 4
    every = ledger_totals([first, second], delta=DELTA)
    assert {name: one.charges for name, one in every.items()} == {"ann": 2, "bob": 2, "cleo": 2}


def test_kinds_of_charges_add_up_only_under_what_covers_both(made: Made) -> None:
    pure = PureDp(epsilon=0.5, adjacency=REPLACE_ONE)
    first = made("first", (1,))
    second = made("second", (1,), event=pure, unit=Unit.SAMPLE, run="another")
    with pytest.raises(AdjacencyMismatchError, match="--adjacency replace-one"):
        ledger_total([first, second], delta=DELTA)
    per_sample = made("third", (1,), unit=Unit.SAMPLE, run="another")
    with pytest.raises(AdjacencyMismatchError, match="per sample and per client"):
        ledger_total([first, per_sample], delta=DELTA)
    with pytest.raises(AdjacencyMismatchError, match="cannot be converted to zero-out"):
        ledger_total([second], delta=DELTA, adjacency="zero-out")
    found = ledger_total([first, second], delta=DELTA, adjacency="replace-one")
    assert (found.adjacency, found.unit) == (REPLACE_ONE, Unit.SAMPLE)
    twice = GaussianNoise(mu=0.6, adjacency=REPLACE_ONE)
    whole = privacy_spent(compose_repeated([(twice, 1), (pure, 1)]), DELTA)
    assert found.epsilon == whole.epsilon
    assert len(found.notes) == 2


def test_by_way_of_zero_is_no_less_than_any_two_inputs() -> None:
    """Two events in place of twice the distance would be too little."""
    rows = ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5), (0.3, 0.4, 0.3))
    table = FiniteTable(rows=rows, zero=2, adjacency=ZERO_OUT)
    assert set(basic_counts(as_replace_one(table))) == {replace(table, adjacency=REPLACE_ONE)}
    # Gaussian noise at -mu and mu: exactly 2 mu apart, which is also 4 rho.
    noise = as_replace_one(compose_repeated([(GaussianNoise(mu=0.5, adjacency=ZERO_OUT), 3)]))
    exact = GaussianNoise(mu=math.sqrt(3.0), adjacency=REPLACE_ONE)
    assert privacy_spent(noise, DELTA).epsilon == pytest.approx(
        privacy_spent(exact, DELTA).epsilon, rel=1e-9
    )
    rho = as_replace_one(ZeroConcentrated(rho=0.125, adjacency=ZERO_OUT))
    assert (
        privacy_spent(rho, DELTA).epsilon
        >= privacy_spent(GaussianNoise(mu=1.0, adjacency=REPLACE_ONE), DELTA).epsilon
    )
    hidden = Sampled(
        event=PureDp(epsilon=0.3, adjacency=ZERO_OUT),
        rate=0.1,
        scheme="poisson",
        hidden_by="own-records",
    )
    assert set(basic_counts(as_replace_one(hidden))) == {PureDp(epsilon=0.6, adjacency=REPLACE_ONE)}
    curve = RenyiCurve(orders=(2.0,), divergences=(0.1,), adjacency=ZERO_OUT)
    with pytest.raises(UnsupportedEventError, match="replace-one"):
        as_replace_one(curve)


def test_rho_quadruples_by_way_of_zero() -> None:
    """D_a(P, Q) <= 2a/(2a - 1) D_(2a-1)(P, R) + D_2a(R, Q), which is at most 4 rho a."""
    rng = np.random.default_rng(7)
    for order in (1.01, 1.5, 2.0, 7.0, 30.0):
        for p, r, q in rng.dirichlet(np.ones(3), size=(200, 3)):
            way = 2 * order / (2 * order - 1) * renyi(p, r, 2 * order - 1)
            assert renyi(p, q, order) <= (way + renyi(r, q, 2 * order)) * (1 + 1e-9)
    (event,) = basic_counts(as_replace_one(ZeroConcentrated(rho=0.1, adjacency=ZERO_OUT)))
    assert event == ZeroConcentrated(rho=0.4, adjacency=REPLACE_ONE)


def renyi(first: Vector, second: Vector, order: float) -> float:
    terms = order * np.log(first) + (1.0 - order) * np.log(second)
    return float(np.logaddexp.reduce(terms)) / (order - 1.0)


POLICY = """name = "hospital-a"
[policy]
mechanisms = ["gaussian"]
level = "client"
adjacency = "zero-out"
epsilon_per_round = 2.0
epsilon_total = {total}
delta = 1e-5
smallest_cohort = 1
"""


def test_a_sites_folder_is_one_account_whose_limit_holds_for_any_server(
    made: Made, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "site.toml").write_text(POLICY.format(total=3.0))
    seal.create(folder)
    made("site/ledger.sqlite")
    made("site/ledger.sqlite", client="its name before", run="another")
    found = ledger_total([folder], delta=DELTA)
    assert (found.charges, found.ledgers[0].account) == (4, "hospital-a")
    assert found.limits is not None
    assert found.limits == pytest.approx((3.0, 1e-5))
    assert found.limits[0] >= 3.0
    assert (
        ledger_total(
            [folder, copied(folder / "ledger.sqlite", "c")], client="ann", delta=DELTA
        ).charges
        == 4
    )
    elsewhere = made("elsewhere", (1,), run="third")
    assert ledger_total([folder, elsewhere], delta=DELTA).limits is None
    with pytest.raises(LedgerError, match="adds up all charges of a site"):
        ledger_total([folder], names={str(folder): ["ann"]}, delta=DELTA)
    for name, text in (("nobody", "name no client"), ("wrong=x", "not one of the ledgers")):
        shown = call("ledger", "total", str(folder), "--client", name, "--delta", "1e-5")
        assert shown.code == 2
        assert text in shown.text
    # A limit that what was charged exceeds is none.
    (folder / "site.toml").write_text(POLICY.format(total=0.1))
    assert ledger_total([folder], delta=DELTA).limits is None
    assert ledger_totals([folder], delta=DELTA).keys() == {"hospital-a"}


def test_limits_add_up_only_over_all_sites_and_where_all_is_hidden_that_they_count_on(
    made: Made, tmp_path: Path
) -> None:
    event = Shuffled(event=PureDp(epsilon=1.0, adjacency=ZERO_OUT), clients=10_000)
    folders = [tmp_path / name for name in ("a", "copy", "c")]
    for number in (0, 2):
        folders[number].mkdir()
        (folders[number] / "site.toml").write_text(POLICY.format(total=1.0 + number))
        seal.create(folders[number])
        Ledger(folders[number] / "ledger.sqlite", create=True).close()
    shutil.copytree(folders[0], folders[1])
    made("a/ledger.sqlite", (1,), event=event)
    # The site that has answered nothing yet may answer within its own limit.
    found = ledger_total([folders[0], folders[2]], delta=DELTA)
    assert found.limits == (4.0, 2e-5)
    # The copy answers too: two messages of one round, which add up to 2 where 0.2 was charged.
    made("copy/ledger.sqlite", (1,), event=event)
    found = ledger_total(folders, delta=DELTA)
    assert found.epsilon == pytest.approx(2.0, abs=1e-4)
    assert found.limits is None


def test_the_command_says_what_was_counted_and_what_holds(made: Made, tmp_path: Path) -> None:
    first, second = made("first"), made("second", client="bob", run="another")
    words = ("ledger", "total", str(first), str(second), "--delta", "1e-5")
    names = ("--client", "ann", "--client", f"{second}/=bob")
    shown = call(*words, *names)
    assert shown.code == 0, shown.text
    assert "assuming that what was asked was fixed beforehand" in shown.text
    assert "chosen after seeing earlier answers: no bound is proved" in shown.text
    found = printed_json(*words, *names)
    assert (
        found
        == ledger_total(
            [first, second], client="ann", names={str(second): ["bob"]}, delta=DELTA
        ).to_dict()
    )
    every = printed_json(*words, "--every")
    assert [one["client"] for one in every] == ["ann", "bob"]
    shown = call(*words, "--every")
    assert "one name is taken to be one person" in shown.text
    assert "assuming that what was asked was fixed beforehand" in shown.text
    assert "if all is seen" in shown.text
    assert call(*words, "--client", "ann", "--client", "bob").code == 2
    assert call("ledger", "total", str(tmp_path / "nothing")).code == 2
    (tmp_path / "spec.toml").write_text("[data]\n" * 200)
    assert (
        "name a folder with a ledger" in call("ledger", "total", str(tmp_path / "spec.toml")).text
    )
    before = {path: path.read_bytes() for path in (first, second)}
    assert call(*words, *names).code == 0
    assert before == {path: path.read_bytes() for path in (first, second)}


def test_a_sum_of_pure_charges_says_that_a_delta_makes_it_smaller(made: Made) -> None:
    many = made("many", range(200), event=PureDp(epsilon=0.1, adjacency=ZERO_OUT))
    few = made("few", event=PureDp(epsilon=0.1, adjacency=ZERO_OUT), run="another")
    shown = call("ledger", "total", str(many), str(few))
    assert "epsilon 20.2000 at delta 0," in shown.text
    lower = show_epsilon(ledger_total([many, few], delta=DELTA).epsilon)
    assert f"smaller: epsilon {lower} with --delta 1e-5" in shown.text
    assert "for one person or site" in shown.text
    assert "smaller" not in call("ledger", "total", str(few)).text


def test_deltas_are_printed_in_few_digits_and_never_below(made: Made) -> None:
    shown = call("ledger", "total", str(made("one")), "--delta", "2.000000000000001e-05")
    assert "at delta 2.00001e-05," in shown.text
    assert [show_delta(one) for one in (0.0, 1e-5, 1 / 3)] == ["0", "1e-05", "0.333334"]


def test_an_altered_ledger_is_refused_and_one_in_use_is_read(made: Made) -> None:
    path = made("ledger.sqlite")
    with Ledger(path) as writer, writer.transaction():
        asked = Release(unit=Unit.CLIENT, run=OWN_NAME, client="ann", round=9, uplink=0)
        writer.charge(asked, 0, EVENT)  # not there before it is committed
        assert ledger_total([path], delta=DELTA).charges == 2
    assert ledger_total([path], delta=DELTA).charges == 3
    with sqlite3.connect(path) as database:
        database.execute("UPDATE spending SET count = 1")
    with pytest.raises(LedgerError, match="altered"):
        ledger_total([path], delta=DELTA)


def test_it_is_a_public_name() -> None:
    assert sottovoce.ledger_total is ledger_total
