"""UDP-FL, section 4.4: the gain from a shuffler, and a printed bound that is below the truth."""

from collections.abc import Iterator, Sequence

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import L2Ball
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.release import ReleaseTerms, ShuffledMessages, local_event, release_event
from sottovoce.privacy import accounting
from sottovoce.privacy.events import PureDp, Repeated
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.privacy.shuffling import shuffled_event
from sottovoce_papers.experiment import (
    NOTHING_TUNED,
    Figure,
    Findings,
    Row,
    Settings,
    experiment,
    number,
)
from sottovoce_papers.published.udp_shuffling import exact_divergence, lemma_2

EPSILONS, FAST_EPSILONS = (0.5, 1.0, 2.0, 4.0), (1.0, 4.0)
CLIENTS, FAST_CLIENTS = (10, 100, 1000, 10_000, 100_000, 1_000_000), (10, 1000)
ROUNDS, FAST_ROUNDS = (1, 10, 100), (1, 10)
DELTAS = (1e-5, 1e-6)
LEMMA_CLIENTS, ORDERS = (10, 100, 1000), (2, 8, 32)
DIMENSIONS, FAST_DIMENSIONS = (1, 10, 100, 1000, 10_000), (1, 10_000)
VECTOR_EPSILON = 1.0  # Of one message, at DELTAS[0].
AMPLIFICATION, LEMMA, VECTOR = "amplification", "lemma 2", "vector"
# A shuffle that saves less than this fraction of epsilon counts as no gain.
NOTHING = 0.01
_R = Adjacency.REPLACE_ONE


def _row(part: str, **values: float) -> Row:
    keys = (
        "eps0",
        "clients",
        "rounds",
        "delta",
        "dimension",
        "local_epsilon",
        "shuffled_epsilon",
        "order",
        "printed",
        "exact",
        "local_divergence",
    )
    assert set(values) <= set(keys)
    return {"part": part, **{key: values.get(key) for key in keys}}


def amplification(eps0: float, clients: int, rounds: int, delta: float) -> Row:
    """Return epsilon of all rounds together, with and without a shuffler."""
    local = PureDp(epsilon=eps0, adjacency=_R)
    hidden = shuffled_event(local, clients)
    return _row(
        AMPLIFICATION,
        eps0=eps0,
        clients=clients,
        rounds=rounds,
        delta=delta,
        local_epsilon=accounting.epsilon(Repeated(event=local, count=rounds), delta),
        shuffled_epsilon=accounting.epsilon(Repeated(event=hidden, count=rounds), delta),
    )


def lemma(eps0: float, clients: int, order: int) -> Row:
    """Return the printed bound and the divergence that it should bound."""
    return _row(
        LEMMA,
        eps0=eps0,
        clients=clients,
        order=order,
        printed=lemma_2(eps0, clients, order),
        exact=exact_divergence(eps0, clients, order),
        local_divergence=renyi_divergence(PureDp(epsilon=eps0, adjacency=_R), float(order)),
    )


def vector(dimension: int, clients: int) -> Row:
    """Return the row of one bit per coordinate at a fixed local epsilon."""
    delta, domain = DELTAS[0], L2Ball(dimension=dimension, radius=1.0)
    bits = registry.find("gauss_hermite")
    found = bits.calibrated(
        domain,
        {"levels": 2},
        rounds=1,
        epsilon=VECTOR_EPSILON,
        delta=delta,
        event_of=ReleaseTerms(adjacency=_R),
    )
    mechanism = bits.build(domain, found)
    local = local_event(mechanism, adjacency=_R)
    visibility = ShuffledMessages(minimum_clients=clients)
    hidden = release_event(mechanism, adjacency=_R, visibility=visibility)
    return _row(
        VECTOR,
        eps0=pure_epsilon(local),
        clients=clients,
        rounds=1,
        delta=delta,
        dimension=dimension,
        local_epsilon=accounting.epsilon(local, delta),
        shuffled_epsilon=accounting.epsilon(hidden, delta),
    )


def _rows(settings: Settings) -> Iterator[Row]:
    fast = settings.fast
    epsilons, clients = (FAST_EPSILONS, FAST_CLIENTS) if fast else (EPSILONS, CLIENTS)
    dimensions = FAST_DIMENSIONS if fast else DIMENSIONS
    steps = len(epsilons) + 1
    for done, eps0 in enumerate(epsilons):
        settings.on_step("shuffles", done, steps, f"eps0 {eps0:g}")
        for number_of in clients:
            for rounds in FAST_ROUNDS if fast else ROUNDS:
                for delta in DELTAS:
                    yield amplification(eps0, number_of, rounds, delta)
        for number_of in LEMMA_CLIENTS:
            for order in ORDERS:
                yield lemma(eps0, number_of, order)
    settings.on_step("shuffles", len(epsilons), steps, "vectors")
    for dimension in dimensions:
        for number_of in clients:
            yield vector(dimension, number_of)
    settings.on_step("shuffles", steps, steps, "done")


@experiment(
    "udp-shuffle",
    title="The gain from a shuffler, and a printed bound below the truth (UDP-FL, section 4.4)",
    claim="The Renyi divergence of the shuffle model at order a is at most "
    "log(1 + C(a,2) 4 (e^gamma - 1)^2/N)/(a - 1) (lemma 2). A shuffler marginally improves "
    "utility, most with the staircase mechanism, and the more so the more clients there are.",
    seeds=0,
)
def udp_shuffle(settings: Settings) -> Findings:
    """Compute the clones bound by clients and rounds, lemma 2 against the truth, and vectors."""
    rows = list(_rows(settings))
    return Findings(
        rows=rows,
        figures=_figures(rows),
        verdict=verdict(rows),
        method="Nothing is sampled. Shuffled epsilons are the clones bound (Feldman, McMillan and "
        "Talwar 2021), composed over rounds by loss distributions, for any local mechanism that is "
        "eps0-DP between any two inputs (replace-one). 'exact' is the Renyi divergence of shuffled "
        "binary randomized response by enumeration over the binomial counts, where all other "
        "clients have the same bit: a bound for every mechanism cannot lie below it. 'printed' is "
        "lemma 2 with gamma = eps0, and is charged nowhere. Vectors are one-bit codes "
        f"(gauss_hermite, 2 levels) of an L2 ball whose message alone has epsilon "
        f"{VECTOR_EPSILON:g} at delta {DELTAS[0]:g}; eps0 is then their pure epsilon.",
        tuning=NOTHING_TUNED,
    )


def _of(rows: Sequence[Row], part: str, **wanted: float) -> list[Row]:
    return [r for r in rows if r["part"] == part and all(r[k] == v for k, v in wanted.items())]


def _values(rows: Sequence[Row], part: str, key: str) -> list[float]:
    return sorted({number(row, key) for row in _of(rows, part)})


def _line(name: str, rows: Sequence[Row], x: str, y: str) -> ChartLine:
    return ChartLine(name=name, x=[number(r, x) for r in rows], y=[number(r, y) for r in rows])


def _figures(rows: Sequence[Row]) -> list[Figure]:
    return [_by_clients(rows), _by_rounds(rows), _lemma_by_order(rows), _by_dimension(rows)]


def _log_chart(title: str, x_label: str, y_label: str, lines: Sequence[ChartLine]) -> LineChart:
    return LineChart(
        title=title, x_label=x_label, y_label=y_label, lines=lines, x_log=True, y_log=True
    )


def _by_clients(rows: Sequence[Row]) -> Figure:
    delta = DELTAS[0]
    lines = [
        _line(
            f"eps0 = {eps0:g}",
            _of(rows, AMPLIFICATION, eps0=eps0, rounds=1, delta=delta),
            "clients",
            "shuffled_epsilon",
        )
        for eps0 in _values(rows, AMPLIFICATION, "eps0")
    ]
    return Figure(
        name="epsilon-by-clients",
        caption=f"One round at delta = {delta:g}; a message alone has epsilon eps0.",
        chart=_log_chart("Epsilon of one shuffled message", "clients", "epsilon", lines),
    )


def _by_rounds(rows: Sequence[Row]) -> Figure:
    delta = DELTAS[0]
    lines = [
        _line(
            f"{clients:,.0f} clients",
            _of(rows, AMPLIFICATION, eps0=1.0, clients=clients, delta=delta),
            "rounds",
            "shuffled_epsilon",
        )
        for clients in _values(rows, AMPLIFICATION, "clients")
    ]
    return Figure(
        name="epsilon-by-rounds",
        caption=f"Rounds composed, eps0 = 1 for each message, delta = {delta:g}.",
        chart=_log_chart("Epsilon of shuffled rounds", "rounds", "epsilon", lines),
    )


def _lemma_by_order(rows: Sequence[Row]) -> Figure:
    eps0, clients = _values(rows, AMPLIFICATION, "eps0")[-1], LEMMA_CLIENTS[-1]
    worst = _of(rows, LEMMA, eps0=eps0, clients=clients)
    lines = [
        _line(name, worst, "order", key)
        for name, key in (("exact", "exact"), ("as printed", "printed"))
    ]
    return Figure(
        name="lemma-2",
        caption=f"Shuffled randomized response of {clients} clients at eps0 = {eps0:g}, and the "
        "bound that lemma 2 prints.",
        chart=_log_chart("Renyi divergence by order", "order", "divergence", lines),
    )


def _by_dimension(rows: Sequence[Row]) -> Figure:
    most = _values(rows, AMPLIFICATION, "clients")[-1]
    vectors = _of(rows, VECTOR, clients=most)
    lines = [
        _line(name, vectors, "dimension", key)
        for name, key in (("shuffled", "shuffled_epsilon"), ("seen", "local_epsilon"))
    ]
    return Figure(
        name="vectors",
        caption=f"One bit a coordinate, {most:,.0f} clients, delta = {DELTAS[0]:g}.",
        chart=_log_chart(
            "Epsilon of a shuffled vector by dimension", "dimension", "epsilon", lines
        ),
    )


def _saved_fraction(row: Row) -> float:
    """Return the fraction of the local epsilon that the shuffle saves."""
    return 1.0 - number(row, "shuffled_epsilon") / number(row, "local_epsilon")


def verdict(rows: Sequence[Row]) -> str:
    """Return what a shuffle needs to gain something, and where the printed lemma fails."""
    lines = []
    for eps0 in _values(rows, AMPLIFICATION, "eps0"):
        once = _of(rows, AMPLIFICATION, eps0=eps0, rounds=1, delta=DELTAS[0])
        shown = ", ".join(
            f"{number(row, 'shuffled_epsilon'):.3g} among {number(row, 'clients'):,.0f}"
            for row in once
        )
        idle = [f"{number(row, 'clients'):,.0f}" for row in once if _saved_fraction(row) < NOTHING]
        nothing = f"; {' and '.join(idle)} clients gain nothing" if idle else ""
        lines.append(f"One message of eps0 = {eps0:g} at delta {DELTAS[0]:g}: {shown}{nothing}.")
    printed = _of(rows, LEMMA)
    false = [row for row in printed if number(row, "printed") < number(row, "exact") * (1 - 1e-9)]
    if false:
        worst = max(false, key=lambda row: number(row, "exact") / number(row, "printed"))
        lines.append(
            f"Lemma 2 as printed lies BELOW the exact divergence of shuffled randomized response "
            f"in {len(false)} of {len(printed)} cases, so it is no bound: at N = "
            f"{number(worst, 'clients'):g}, eps0 = {number(worst, 'eps0'):g}, order "
            f"{number(worst, 'order'):g} it prints {number(worst, 'printed'):.3g} where the truth "
            f"is {number(worst, 'exact'):.3g}."
        )
    else:
        lines.append(f"Lemma 2 as printed holds in all {len(printed)} cases.")
    for clients in _values(rows, VECTOR, "clients"):
        vectors = _of(rows, VECTOR, clients=clients)
        idle = [
            f"{number(row, 'dimension'):g} (eps0 {number(row, 'eps0'):.3g})"
            for row in vectors
            if _saved_fraction(row) < NOTHING
        ]
        where = f"nothing at dimension {', '.join(idle)}" if idle else "something in each dimension"
        lines.append(
            f"Vectors of bits, {clients:,.0f} clients: a local epsilon of {VECTOR_EPSILON:g} gains "
            f"{where}."
        )
    return "\n".join(lines)
