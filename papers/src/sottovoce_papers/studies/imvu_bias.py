"""I-MVU figure 1: the mean of the decoded value of a number in [0, 1]."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.core.domains import Box, L2Ball, Vector
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.interpolated_mvu import InterpolatedMvu
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.mvu import Mvu
from sottovoce_papers.added_mechanisms import AddedMechanism
from sottovoce_papers.experiment import (
    NOTHING_TUNED,
    Figure,
    Findings,
    Row,
    Settings,
    experiment,
    number,
)
from sottovoce_papers.mean_estimation import at_rho, choose_domain, claims

EPSILONS = (1.0, 3.0, 5.0, 10.0)
FAST_EPSILONS = (1.0, 5.0)
NUM_INPUTS, FAST_NUM_INPUTS = 401, 41
LEVELS = (2, 4, 8)
MVU, INTERPOLATED = "MVU, 1 bit", "I-MVU, 1 bit"
OURS = ("Gauss-Hermite, 1 bit", "Gauss-Hermite, 2 bits", "Gauss-Hermite, 3 bits")  # as LEVELS
# A smaller bias is a rounding error.
UNBIASED = 1e-9
_CENTERED = L2Ball(dimension=1, radius=0.5)  # u = x - 1/2


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMechanism:
    """A mechanism for a number x in [0, 1], to which x - origin is given."""

    name: str
    mechanism: Mechanism
    origin: float

    def moments(self, inputs: Vector) -> tuple[Vector, Vector]:
        """Return the exact mean and variance of the decoded value for each input."""
        laws = [self.mechanism.law([x - self.origin]) for x in inputs]
        means = np.array([float(law.mean()[0]) for law in laws])
        return means + self.origin, np.array([float(law.variance()[0]) for law in laws])


def compared_mechanisms(epsilon: float) -> list[OffsetMechanism]:
    """Return MVU and I-MVU at epsilon over [0, 1], and ours at I-MVU's rho: sigma = 1/epsilon."""
    mvu = Mvu(
        input_domain=Box(dimension=1, lower=0.0, upper=1.0),
        epsilon=epsilon,
        input_bits=1,
        output_bits=1,
    )
    published = InterpolatedMvu(input_domain=_CENTERED, epsilon=epsilon, beta=1.0, output_bits=1)
    ours = [
        GaussHermite(input_domain=_CENTERED, levels=levels, noise_multiplier=2.0 / epsilon)
        for levels in LEVELS
    ]
    return [
        OffsetMechanism(name=MVU, mechanism=mvu, origin=0.0),
        OffsetMechanism(name=INTERPOLATED, mechanism=published, origin=0.5),
        *(
            OffsetMechanism(name=n, mechanism=m, origin=0.5)
            for n, m in zip(OURS, ours, strict=True)
        ),
    ]


def calibrated_for_figure(added: AddedMechanism, epsilon: float) -> OffsetMechanism:
    """Return an added mechanism at I-MVU's rho under zero-out, against x = 1/2."""
    domain = choose_domain(added, [_CENTERED])
    mechanism = at_rho(added, domain, epsilon**2 / 8.0)
    return OffsetMechanism(name=added.name, mechanism=mechanism, origin=0.5)


@experiment(
    "imvu-bias",
    title="The mean decoded value of a number in [0, 1] (I-MVU, figure 1)",
    claim="While MVU is unbiased in the entire interval [0, 1], I-MVU incurs some bias for x other "
    "than 0 and 1, especially at higher values of epsilon; the bias is small in comparison to the "
    "noise. (By symmetry it has none at 1/2 either.)",
    seeds=0,
    takes_mechanisms=True,
)
def imvu_bias(settings: Settings) -> Findings:
    """Compute exact means and variances on a grid of inputs."""
    epsilons = FAST_EPSILONS if settings.fast else EPSILONS
    inputs = np.linspace(0.0, 1.0, FAST_NUM_INPUTS if settings.fast else NUM_INPUTS)
    rows: list[Row] = []
    means: dict[str, Vector] = {MVU: inputs}
    for done, epsilon in enumerate(epsilons):
        settings.on_step("epsilons", done, len(epsilons), f"epsilon {epsilon:g}")
        added = [calibrated_for_figure(one, epsilon) for one in settings.added]
        for compared in [*compared_mechanisms(epsilon), *added]:
            mean, variance = compared.moments(inputs)
            rows.append(_row(epsilon, compared.name, inputs, mean, variance))
            if compared.name == INTERPOLATED:
                means[f"I-MVU, epsilon = {epsilon:g}"] = mean
    settings.on_step("epsilons", len(epsilons), len(epsilons), "done")
    return Findings(
        rows=rows,
        figures=_figures(inputs, means, rows),
        verdict=verdict(rows),
        method=f"Nothing is sampled: means and variances come from the declared laws at "
        f"{len(inputs)} inputs. MVU (two rows, dithered between them) and I-MVU (beta = 1) are "
        "epsilon-DP between any two inputs. Gauss-Hermite has the I-MVU's rho, epsilon^2/8 under "
        "zero-out (against x = 1/2) and epsilon^2/2 under replace-one, that is sigma = 1/epsilon; "
        "with more than one bit that is not pure epsilon-DP. The MSE is that of one client, "
        "averaged over the inputs: variance plus squared bias."
        + _told([one.mechanism for one in added], settings.added),
        tuning=NOTHING_TUNED,
    )


def _told(mechanisms: Sequence[Mechanism], added: Sequence[AddedMechanism]) -> str:
    if not added:
        return ""
    names = "; ".join(one.name for one in added)
    lines = [
        f"Added: {names}. Each has the I-MVU's rho under zero-out, epsilon^2/8, as its own "
        "accountant states it.",
        *claims(mechanisms, Adjacency.ZERO_OUT),
    ]
    return "".join(f"\n{line}" for line in lines)


def _row(epsilon: float, name: str, inputs: Vector, mean: Vector, variance: Vector) -> Row:
    bias = mean - inputs
    worst = int(np.abs(bias).argmax())
    return {
        "epsilon": epsilon,
        "mechanism": name,
        "bias_max": float(np.abs(bias).max()),
        "bias_max_at_x": float(inputs[worst]),
        "bias_squared_mean": float((bias**2).mean()),
        "variance_mean": float(variance.mean()),
        "mse_mean": float((variance + bias**2).mean()),
    }


def _figures(inputs: Vector, means: Mapping[str, Vector], rows: Sequence[Row]) -> list[Figure]:
    def by_input(title: str, y_label: str, less: Vector) -> LineChart:
        lines = [
            ChartLine(name=name, x=inputs.tolist(), y=(mean - less).tolist())
            for name, mean in means.items()
        ]
        return LineChart(title=title, x_label="input x", y_label=y_label, lines=lines)

    largest = [
        ChartLine(
            name=name,
            x=[number(row, "epsilon") for row in rows if row["mechanism"] == name],
            y=[number(row, "bias_max") for row in rows if row["mechanism"] == name],
        )
        for name in dict.fromkeys(str(row["mechanism"]) for row in rows)
        if name != MVU
    ]
    return [
        Figure(
            name="expected-value",
            caption="The mean of the decoded value by x; MVU is the diagonal.",
            chart=by_input("E[M(x)] by input", "expected value", np.zeros_like(inputs)),
        ),
        Figure(
            name="bias",
            caption="The same minus x.",
            chart=by_input("Bias by input", "E[M(x)] - x", inputs),
        ),
        Figure(
            name="largest-bias",
            caption="The largest bias over [0, 1] at equal rho.",
            chart=LineChart(
                title="Largest bias by epsilon",
                x_label="epsilon",
                y_label="largest |E[M(x)] - x|",
                lines=largest,
                y_log=True,
            ),
        ),
    ]


def verdict(rows: Sequence[Row]) -> str:
    """Return which mechanism is unbiased, how the published bias grows, and where ours is less."""
    keys = [(number(row, "epsilon"), str(row["mechanism"])) for row in rows]
    biases = {key: number(row, "bias_max") for key, row in zip(keys, rows, strict=True)}
    errors = {key: number(row, "mse_mean") for key, row in zip(keys, rows, strict=True)}
    squares = {key: number(row, "bias_squared_mean") for key, row in zip(keys, rows, strict=True)}
    epsilons = sorted({epsilon for epsilon, _ in biases})
    listed = ", ".join(f"{epsilon:g}" for epsilon in epsilons)

    def values(name: str) -> str:
        return ", ".join(f"{biases[epsilon, name]:.3g}" for epsilon in epsilons)

    published = [biases[epsilon, INTERPOLATED] for epsilon in epsilons]
    mvu = max(biases[epsilon, MVU] for epsilon in epsilons)
    grows = all(a < b for a, b in itertools.pairwise(published))
    shares = [100.0 * squares[e, INTERPOLATED] / errors[e, INTERPOLATED] for e in epsilons]
    lines = [
        f"MVU is {'unbiased' if mvu <= UNBIASED else 'BIASED'}: at most {mvu:.1g}.",
        f"The largest bias of I-MVU at epsilon = {listed} is {values(INTERPOLATED)}; "
        f"{'it grows' if grows else 'it does NOT always grow'} with epsilon. The "
        f"mean of its square is {', '.join(f'{share:.2g}%' for share in shares)} of one client's "
        "MSE.",
    ]
    for name in OURS:
        wins = [f"{e:g}" for e in epsilons if biases[e, name] < biases[e, INTERPOLATED]]
        where = f"less than I-MVU's at epsilon = {', '.join(wins)}" if wins else "never less"
        ratios = ", ".join(f"{errors[e, name] / errors[e, INTERPOLATED]:.3g}" for e in epsilons)
        lines.append(f"{name}: {values(name)}, {where}; one client's MSE over I-MVU's is {ratios}.")
    return "\n".join(lines)
