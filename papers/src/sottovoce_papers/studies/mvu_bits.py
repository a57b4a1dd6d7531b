"""MVU figure 5: the value of another output bit, by epsilon."""

from sottovoce.core.charts.grids import HeatMap
from sottovoce.core.charts.lines import ChartLine, LineChart
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.store import DesignSpec
from sottovoce.reporting.design_matrix import matrix_panel
from sottovoce_papers.experiment import NOTHING_TUNED, Figure, Findings, Row, Settings, experiment

INPUT_BITS = 5
OUTPUT_BITS = (1, 2, 3, 4, 5)
EPSILONS = (1.0, 3.0, 5.0)
SHOWN_EPSILON = 5.0
FAST_OUTPUT_BITS, FAST_EPSILONS = (1, 2, 3), (5.0,)


@experiment(
    "mvu-bits",
    title="The value of another output bit, 5 bits in (MVU, figure 5 and appendix B.2)",
    claim="As b_out increases, the structure of the matrix stays nearly the same and is refined; "
    "the marginal benefit to the MSE becomes lower, and the more so the smaller epsilon is, since "
    "privacy noise leaves less to communicate.",
    seeds=0,
)
def mvu_bits(settings: Settings) -> Findings:
    """Solve one certified design for each epsilon and number of output bits."""
    epsilons = FAST_EPSILONS if settings.fast else EPSILONS
    bits = FAST_OUTPUT_BITS if settings.fast else OUTPUT_BITS
    rows: list[Row] = []
    panels, lines = [], []
    total = len(epsilons) * len(bits)
    for epsilon in epsilons:
        errors: list[float] = []
        for output_bits in bits:
            settings.on_step("designs", len(rows), total, f"epsilon {epsilon:g}, {output_bits} bit")
            design = store.find(
                DesignSpec(
                    family="strict",
                    epsilon=epsilon,
                    inputs=1 << INPUT_BITS,
                    letters=1 << output_bits,
                )
            )
            if epsilon == SHOWN_EPSILON:
                panels.append(matrix_panel(f"b_out = {output_bits}", design))
            error = design.sum_of_variances() / (1 << INPUT_BITS)
            saved = 100.0 * (1.0 - error / errors[-1]) if errors else None
            errors.append(error)
            rows.append(
                {
                    "epsilon": epsilon,
                    "output_bits": output_bits,
                    "mse": error,
                    "saved_by_last_bit_percent": saved,
                }
            )
        lines.append(
            ChartLine(
                name=f"epsilon = {epsilon:g}",
                x=[float(b) for b in bits],
                y=[error / errors[0] for error in errors],
            )
        )
    settings.on_step("designs", total, total, "done")
    return Findings(
        rows=rows,
        figures=[
            Figure(
                name="mse-by-bits",
                caption="Mean squared error of one client's value, relative to one bit's.",
                chart=LineChart(
                    title="MSE by output bits, relative to one bit",
                    x_label="output bits",
                    y_label="MSE / MSE of one bit",
                    lines=lines,
                ),
            ),
            Figure(
                name="matrices",
                caption=f"The matrices at epsilon = {SHOWN_EPSILON:g}: 32 inputs (rows, 0 on top), "
                "2^b_out letters (columns, rising), the alphabet below.",
                chart=HeatMap(
                    title=f"Probability matrices at epsilon = {SHOWN_EPSILON:g} by output bits",
                    panels=panels,
                ),
            ),
        ],
        verdict=_verdict(rows),
        method="Nothing is sampled: the MSE is the mean variance over the 32 inputs of each "
        "certified design, in units of the interval [0, 1]. The designs are unbiased.",
        tuning=NOTHING_TUNED,
    )


def _verdict(rows: list[Row]) -> str:
    savings: dict[float, list[float]] = {}
    for row in rows:
        epsilon, saved = row["epsilon"], row["saved_by_last_bit_percent"]
        if isinstance(epsilon, float) and isinstance(saved, float):
            savings.setdefault(epsilon, []).append(saved)
    sentences = [
        f"At epsilon = {epsilon:g} each further bit saves "
        + ", ".join(f"{percent:.2g}%" for percent in saved)
        for epsilon, saved in savings.items()
    ]
    falling = all(sorted(saved, reverse=True) == saved for saved in savings.values())
    summary = (
        "the marginal benefit falls with every bit"
        if falling
        else "the marginal benefit does not fall with every bit"
    )
    first = [saved[0] for _, saved in sorted(savings.items())]
    if len(first) > 1:
        rises = sorted(first) == first
        summary += (
            ", and a smaller epsilon needs fewer bits"
            if rises
            else ", but a smaller epsilon does not always need fewer bits"
        )
    lines = "".join(f"{sentence}.\n" for sentence in sentences)
    return f"{lines}So {summary}."
