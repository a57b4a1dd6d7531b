"""`sottovoce privacy`: what a mechanism spends, and what it takes to stay within a budget."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, print_fields, print_json, print_table, progress_bars, show

if TYPE_CHECKING:
    from sottovoce.adjacency import Adjacency
    from sottovoce.domains import Domain
    from sottovoce.mechanisms.mechanism import Mechanism
    from sottovoce.mechanisms.registry import Registration
    from sottovoce.privacy.accounting import PrivacySpent
    from sottovoce.privacy.events import PrivacyEvent

app = typer.Typer(help="Account for privacy, or calibrate to a budget.", no_args_is_help=True)

Kind = Annotated[str, typer.Option("--mechanism", help="A name from 'sottovoce mechanism list'.")]
Param = Annotated[list[str] | None, typer.Option(help="A parameter as name=value; repeatable.")]
Rounds = Annotated[int, typer.Option(help="How often a client takes part.")]
Delta = Annotated[float, typer.Option(help="The failure probability, such as 1e-5.")]
Dimension = Annotated[int, typer.Option(help="Coordinates of an update.")]
ClipNorm = Annotated[float, typer.Option(help="The largest norm of a contribution.")]
ClipGeometry = Annotated[
    str | None, typer.Option(help="l2, l1 or linf [what the mechanism is made for].")
]
AdjacencyName = Annotated[str, typer.Option(help="zero-out or replace-one.")]
SamplingRate = Annotated[
    float | None,
    typer.Option(help="Each round works on a secret sample, taken with this probability."),
]
SamplingScheme = Annotated[str, typer.Option(help="poisson or fixed-size.")]
SamplingHiddenBy = Annotated[
    str,
    typer.Option(
        help="What keeps the sample secret: own-records (a client samples its own records), "
        "central-noise, secure-sum, or nothing (the server sees who sends: refused)."
    ),
]
ShuffledClients = Annotated[
    int | None, typer.Option(help="Messages that a shuffler mixes in each round.")
]
SecureSumClients = Annotated[
    int | None,
    typer.Option(help="Clients of whom a secure sum reveals nothing but the sum, at least."),
]
AccountantName = Annotated[
    str | None, typer.Option(help="The bound of this accountant alone [the smallest of all].")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What one round releases, apart from the mechanism's own parameters."""

    registration: "Registration"
    domain: "Domain"
    adjacency: "Adjacency"
    sampling_rate: float | None
    sampling_scheme: str
    sampling_hidden_by: str
    shuffled_clients: int | None
    secure_sum_clients: int | None

    @property
    def amplified(self) -> bool:
        return any(
            value is not None
            for value in (self.sampling_rate, self.shuffled_clients, self.secure_sum_clients)
        )

    def event(self, mechanism: "Mechanism") -> "PrivacyEvent":
        """What is seen of one client in one round."""
        from sottovoce.adjacency import Adjacency
        from sottovoce.channels.channel import SecureSum
        from sottovoce.privacy.events import Sampled
        from sottovoce.privacy.shuffling import shuffled

        if self.secure_sum_clients is not None:
            channel = SecureSum(minimum_clients=self.secure_sum_clients)
            event: PrivacyEvent = channel.event(mechanism, self.adjacency)
        elif self.shuffled_clients is not None:
            # Clones hide any change of an input, so that is what is asked of each message, and
            # zero-out is one such change.
            local = mechanism.privacy(Adjacency.REPLACE_ONE)
            event = shuffled(local, self.shuffled_clients)
        else:
            event = mechanism.privacy(self.adjacency)
        if self.sampling_rate is None:
            return event
        return Sampled(
            event=event,
            rate=self.sampling_rate,
            scheme=self.sampling_scheme,  # type: ignore[arg-type]
            hidden_by=self.sampling_hidden_by,  # type: ignore[arg-type]
        )

    def describe(self) -> dict[str, Any]:
        """How the release is amplified, for the result; empty if it is not."""
        described: dict[str, Any] = {}
        if self.sampling_rate is not None:
            described["sampling"] = {
                "rate": self.sampling_rate,
                "scheme": self.sampling_scheme,
                "hidden_by": self.sampling_hidden_by,
            }
        if self.shuffled_clients is not None:
            described["shuffled_clients"] = self.shuffled_clients
        if self.secure_sum_clients is not None:
            described["secure_sum_clients"] = self.secure_sum_clients
        return described


def _setting(
    kind: str,
    dimension: int,
    clip_norm: float,
    clip_geometry: str | None,
    adjacency: str,
    sampling_rate: float | None,
    sampling: str,
    sampling_hidden_by: str,
    shuffled_clients: int | None,
    secure_sum_clients: int | None,
) -> _Setting:
    from sottovoce import parameters
    from sottovoce.adjacency import Adjacency
    from sottovoce.domains import clipped, geometry_of
    from sottovoce.errors import PrivacyError
    from sottovoce.mechanisms import registry

    registration = registry.find(kind)
    geometry = clip_geometry or geometry_of(registration.example_domain)
    if shuffled_clients is not None and secure_sum_clients is not None:
        raise PrivacyError(
            "a shuffler's messages and a secure sum's are seen in different ways; give one of "
            "--shuffled-clients and --secure-sum-clients"
        )
    if sampling_rate is not None:
        parameters.fraction("sampling rate", sampling_rate)
        if sampling_hidden_by == "nothing":
            raise PrivacyError(
                "a server that receives each message sees who took part, so sampling clients "
                "amplifies nothing; leave out --sampling-rate and count as --rounds those in "
                "which a client takes part, or hide the sample by own-records, central-noise or "
                "secure-sum"
            )
    return _Setting(
        registration=registration,
        domain=clipped(geometry, dimension, clip_norm),
        adjacency=Adjacency.parse(adjacency),
        sampling_rate=sampling_rate,
        sampling_scheme=sampling,
        sampling_hidden_by=sampling_hidden_by,
        shuffled_clients=shuffled_clients,
        secure_sum_clients=secure_sum_clients,
    )


def _given(param: list[str] | None) -> dict[str, Any]:
    from sottovoce.config.loading import parse_assignments

    return parse_assignments(param or [], "--param")


@app.command()
def spend(
    mechanism: Kind,
    delta: Delta,
    param: Param = None,
    rounds: Rounds = 1,
    sampling_rate: SamplingRate = None,
    sampling: SamplingScheme = "poisson",
    sampling_hidden_by: SamplingHiddenBy = "own-records",
    shuffled_clients: ShuffledClients = None,
    secure_sum_clients: SecureSumClients = None,
    dimension: Dimension = 1,
    clip_norm: ClipNorm = 1.0,
    clip_geometry: ClipGeometry = None,
    adjacency: AdjacencyName = "zero-out",
    accountant: AccountantName = None,
    as_json: Json = False,
) -> None:
    """The epsilon that a client spends over some rounds."""
    from sottovoce import parameters

    parameters.delta(delta)
    _check_rounds(rounds)
    setting = _setting(
        mechanism,
        dimension,
        clip_norm,
        clip_geometry,
        adjacency,
        sampling_rate,
        sampling,
        sampling_hidden_by,
        shuffled_clients,
        secure_sum_clients,
    )
    built = setting.registration.build(setting.domain, _given(param))
    _report(
        built,
        setting,
        clip_norm=clip_norm,
        rounds=rounds,
        delta=delta,
        accountant=accountant,
        as_json=as_json,
    )


@app.command()
def calibrate(
    mechanism: Kind,
    epsilon: Annotated[float, typer.Option(help="The budget over all rounds.")],
    delta: Delta,
    param: Param = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="How often a client takes part [1]; with every parameter given, the largest "
            "number that fits is found."
        ),
    ] = None,
    sampling_rate: SamplingRate = None,
    sampling: SamplingScheme = "poisson",
    sampling_hidden_by: SamplingHiddenBy = "own-records",
    shuffled_clients: ShuffledClients = None,
    secure_sum_clients: SecureSumClients = None,
    dimension: Dimension = 1,
    clip_norm: ClipNorm = 1.0,
    clip_geometry: ClipGeometry = None,
    adjacency: AdjacencyName = "zero-out",
    as_json: Json = False,
) -> None:
    """The parameters, or the number of rounds, that just stay within (epsilon, delta)."""
    setting = _setting(
        mechanism,
        dimension,
        clip_norm,
        clip_geometry,
        adjacency,
        sampling_rate,
        sampling,
        sampling_hidden_by,
        shuffled_clients,
        secure_sum_clients,
    )
    given = _given(param)
    registration = setting.registration
    knob = registration.knob.parameter if registration.knob else None
    with progress_bars() as bars:
        bars.update("calibrating", 0, 1, "seconds, or up to a minute for designed tables")
        if rounds is None and knob in given:
            built = registration.build(setting.domain, given)
            rounds = _rounds(setting.event(built), epsilon, delta)
        else:
            rounds = _check_rounds(1 if rounds is None else rounds)
            found = registration.calibrated(
                setting.domain,
                given,
                rounds=rounds,
                epsilon=epsilon,
                delta=delta,
                event_of=setting.event,
            )
            built = registration.build(setting.domain, found)
        bars.update("calibrating", 1, 1, "done")
    _report(built, setting, clip_norm=clip_norm, rounds=rounds, delta=delta, as_json=as_json)


@app.command()
def curve(
    mechanism: Kind,
    delta: Delta,
    param: Param = None,
    rounds: Rounds = 1000,
    points: Annotated[int, typer.Option(help="On how many numbers of rounds.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="Draw epsilon against rounds (SVG).")] = None,
    sampling_rate: SamplingRate = None,
    sampling: SamplingScheme = "poisson",
    sampling_hidden_by: SamplingHiddenBy = "own-records",
    shuffled_clients: ShuffledClients = None,
    secure_sum_clients: SecureSumClients = None,
    dimension: Dimension = 1,
    clip_norm: ClipNorm = 1.0,
    clip_geometry: ClipGeometry = None,
    adjacency: AdjacencyName = "zero-out",
    as_json: Json = False,
) -> None:
    """How epsilon grows with the rounds, by every sound bound."""
    from sottovoce import parameters
    from sottovoce.privacy.accounting import privacy_spent
    from sottovoce.privacy.events import Repeated

    parameters.delta(delta)
    _check_rounds(rounds)
    parameters.integer("points", points, low=1, high=1000)
    setting = _setting(
        mechanism,
        dimension,
        clip_norm,
        clip_geometry,
        adjacency,
        sampling_rate,
        sampling,
        sampling_hidden_by,
        shuffled_clients,
        secure_sum_clients,
    )
    built = setting.registration.build(setting.domain, _given(param))
    event = setting.event(built)
    counts = _spread(rounds, points)
    spents: list[PrivacySpent] = []
    with progress_bars() as bars:
        for count in counts:
            bars.update("accounting", len(spents), len(counts), f"{count} rounds")
            spents.append(privacy_spent(Repeated(event=event, count=count), delta))
        bars.update("accounting", len(counts), len(counts), "done")
    result: dict[str, Any] = {
        "mechanism": setting.registration.kind,
        "delta": delta,
        "adjacency": str(event.adjacency),
        **setting.describe(),
        "curve": [
            {
                "rounds": count,
                "epsilon": _finite(spent.epsilon),
                "accountant": spent.accountant,
                "bounds": {name: _finite(bound) for name, bound in spent.bounds},
            }
            for count, spent in zip(counts, spents, strict=True)
        ],
    }
    if plot is not None:
        _plot(plot, built, delta, counts, spents)
        result["plot"] = str(plot)
    if as_json:
        print_json(result)
        return
    print_table(
        ["rounds", "epsilon", "accountant"],
        [
            [str(count), show(spent.epsilon, "epsilon"), spent.accountant]
            for count, spent in zip(counts, spents, strict=True)
        ],
    )


def _check_rounds(rounds: int) -> int:
    from sottovoce import parameters
    from sottovoce.privacy.calibration import MAX_ROUNDS

    return parameters.integer("rounds", rounds, low=1, high=MAX_ROUNDS)


def _rounds(event: "PrivacyEvent", epsilon: float, delta: float) -> int:
    from sottovoce.errors import ParameterError
    from sottovoce.privacy.accounting import privacy_spent
    from sottovoce.privacy.calibration import rounds_within

    rounds = rounds_within(event, epsilon=epsilon, delta=delta)
    if not rounds:
        spent = privacy_spent(event, delta)
        raise ParameterError(
            f"not even one round fits: it spends {spent}; ask for a larger epsilon or more noise"
        )
    return rounds


def _spread(rounds: int, points: int) -> list[int]:
    """Numbers of rounds in geometric progression, the last one included."""
    if points == 1:
        return [rounds]
    return sorted({round(rounds ** (i / (points - 1))) for i in range(points)})


def _finite(value: float) -> float | None:
    import math

    return value if math.isfinite(value) else None


def _plot(
    path: Path,
    mechanism: "Mechanism",
    delta: float,
    counts: list[int],
    spents: "list[PrivacySpent]",
) -> None:
    import math

    from sottovoce.files import write_atomic
    from sottovoce.mechanisms.registry import kind_of
    from sottovoce.reporting.figures import Line, LineChart
    from sottovoce.reporting.style import standalone

    lines = []
    for name in dict.fromkeys(name for spent in spents for name, _ in spent.bounds):
        known = [
            (float(count), dict(spent.bounds)[name])
            for count, spent in zip(counts, spents, strict=True)
            if math.isfinite(dict(spent.bounds).get(name, math.inf))
        ]
        if known:
            lines.append(Line(name=name, x=[x for x, _ in known], y=[y for _, y in known]))
    if not lines:
        from sottovoce.errors import ParameterError

        raise ParameterError("every bound is infinite, so there is nothing to draw")
    chart = LineChart(
        title=f"Epsilon of {kind_of(mechanism)} at delta = {delta:g}, by accountant",
        x_label="rounds",
        y_label="epsilon",
        lines=lines,
        x_log=len(counts) > 1 and counts[-1] >= 100,
    )
    write_atomic(path, standalone(chart.svg()).encode())


def _report(
    mechanism: "Mechanism",
    setting: _Setting,
    *,
    clip_norm: float,
    rounds: int,
    delta: float,
    as_json: bool,
    accountant: str | None = None,
) -> None:
    import math

    from sottovoce.domains import geometry_of
    from sottovoce.mechanisms.mechanism import bits_per_coordinate
    from sottovoce.mechanisms.registry import public_parameters
    from sottovoce.privacy.accounting import privacy_spent
    from sottovoce.privacy.events import Repeated

    event = Repeated(event=setting.event(mechanism), count=rounds)
    spent = privacy_spent(event, delta, accountant)
    public = public_parameters(mechanism)
    result = {
        "epsilon": _finite(spent.epsilon),
        "delta": delta,
        "adjacency": str(spent.adjacency),
        "accountant": spent.accountant,
        "private": math.isfinite(spent.epsilon),
        "mechanism": public["kind"],
        "parameters": public["parameters"],
        "dimension": public["domain"]["dimension"],
        "clip_norm": clip_norm,
        "clip_geometry": geometry_of(mechanism.input_domain),
        "noise_stddev": getattr(mechanism, "noise_stddev", None),
        "rounds": rounds,
        "bits_per_coordinate": bits_per_coordinate(mechanism),
        "sampling_grade": mechanism.sampling,
        "rounding_inflation": getattr(mechanism, "inflation", None),
        **setting.describe(),
        "bounds": {name: _finite(bound) for name, bound in spent.bounds},
    }
    if setting.amplified:
        local = Repeated(event=mechanism.privacy(spent.adjacency), count=rounds)
        result["local_epsilon"] = _finite(privacy_spent(local, delta).epsilon)
    if as_json:
        print_json(result)
        return
    fields = {**result, "epsilon": spent.epsilon}
    if mechanism.sampling == "float":
        fields["sampling_grade"] = "float (simulation only: float noise leaks in its last bits)"
    print_fields(fields)
