"""Summaries of a grid's trials over seeds, and a verdict that is computed from them alone."""

import itertools
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core.display import show_epsilon
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.runs.record import DIVERGED
from sottovoce_papers.experiment import Cell, Row
from sottovoce_papers.grid_files import EPSILON, MECHANISM, RATE, SEED, GridFile
from sottovoce_papers.learning.curves import NOT_REACHED, LearningCurve
from sottovoce_papers.learning.tuning import Group, TunedRate, group_of
from sottovoce_papers.sweep import Key, TrialResult, label


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One cell of the grid, summarized over its seeds.

    `key` holds the mechanism, epsilon (None without privacy) and further axes. `accuracies` are
    those of the seeds that succeeded; an interval needs two. `failed` counts all other seeds, and
    `diverged` those of them whose model diverged. `published` is an epsilon from a
    paper's own analysis that is not a bound: such a row is compared with no other.
    """

    key: Key
    accuracies: Mapping[int, float]
    curve: LearningCurve
    failed: int
    diverged: int
    rate: TunedRate | None
    spent: float | None
    published: float | None
    first: Mapping[str, Cell]  # Results that are the same for all seeds.
    r_squared: Mapping[int, float]  # Of a regression; otherwise empty.

    @property
    def mechanism(self) -> str:
        return str(self.key[MECHANISM])

    @property
    def epsilon(self) -> float | None:
        epsilon = self.key[EPSILON]
        return None if epsilon is None else float(epsilon)

    @property
    def full_name(self) -> str:
        """The mechanism with the values of the further axes, without epsilon."""
        return self.named(apart_from=(EPSILON,))

    def named(self, *, apart_from: Collection[str]) -> str:
        """Return the mechanism with the values of the other axes, without those in `apart_from`."""
        others = [
            label({name: value})
            for name, value in self.key.items()
            if name not in (MECHANISM, *apart_from) and value is not None
        ]
        return ", ".join([self.mechanism, *others])

    @property
    def others(self) -> tuple[Cell, ...]:
        """The values of all axes except the mechanism, which a comparison holds fixed."""
        return tuple(value for name, value in self.key.items() if name != MECHANISM)

    @property
    def is_hidden(self) -> bool:
        """Whether the local epsilon differs from the spent one, because the channel amplifies."""
        return self.first["local_epsilon"] not in (None, self.spent)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.accuracies.values()) if self.accuracies else None

    @property
    def interval(self) -> tuple[float, float] | None:
        if not self.accuracies:
            return None
        _, low, high = interval_of(self.accuracies)
        return None if low is None or high is None else (low, high)

    def rounds_to(self, target: float) -> Cell:
        """Return the rounds to reach `target` for the table, or None if there is no curve."""
        return (self.curve.rounds_to(target) or NOT_REACHED) if self.curve.rounds else None

    def plain(self, target_accuracy: float | None = None) -> dict[str, Cell]:
        """Return the row of the page's table."""
        low, high = self.interval or (None, None)
        target = target_accuracy
        return {
            **self.key,
            **({RATE: self.rate.rate, "rate_at_edge": self.rate.at_edge} if self.rate else {}),
            "accuracy": self.mean,
            "accuracy_low": low,
            "accuracy_high": high,
            "seeds": len(self.accuracies),
            "failed": self.failed,
            "diverged": self.diverged,
            **_of_r_squared(self.r_squared),
            **({f"rounds_to_{target:g}": self.rounds_to(target)} if target else {}),
            "epsilon_spent": self.spent,
            "published_epsilon": self.published,
            **self.first,
        }


def interval_of(scores: Mapping[int, float]) -> tuple[float, float | None, float | None]:
    """Return the mean over seeds with Student's 95% interval, which needs two of them."""
    if len(scores) < 2:
        return statistics.fmean(scores.values()), None, None
    mean, half = mean_and_half_width(list(scores.values()))
    return mean, mean - half, mean + half


def _of_r_squared(scores: Mapping[int, float]) -> dict[str, Cell]:
    mean, low, high = interval_of(scores) if scores else (None, None, None)
    return dict(zip(R_SQUARED, (mean, low, high), strict=True))


_R_SQUARED = "R-squared"  # Its name in the figures of an evaluation.
TRIVIAL = "trivial_score"
R_SQUARED = ("r_squared", "r_squared_low", "r_squared_high")
COMMON = (
    TRIVIAL,
    "delta",
    "bits_per_coordinate",
    "payload_bytes_up_per_message",
    "dimension",
    "rounds",
)
# The epsilon of messages without the channel's amplification, and all bytes that a client sends.
OF_HIDDEN = ("local_epsilon", "payload_bytes_up_per_client", "total_bytes_up_per_client")
# A message as a protocol for secure sums sends it.
MASKED = "masked_bytes_up_per_message"


def table(rows: Sequence[Summary], target_accuracy: float | None) -> list[Row]:
    """Return the page's table.

    The columns of published epsilons and of diverged seeds, and those about channels that hide
    messages, are left out if no row has a value for them.
    """
    plain = [row.plain(target_accuracy) for row in rows]
    if not any(row.is_hidden for row in rows):
        for cells, name in itertools.product(plain, OF_HIDDEN):
            del cells[name]
    if all(row.first[MASKED] is None for row in rows):
        for cells in plain:
            del cells[MASKED]
    if not any(row.diverged for row in rows):
        for cells in plain:
            del cells["diverged"]
    for name in (TRIVIAL, *R_SQUARED):
        if all(cells[name] is None for cells in plain):
            for cells in plain:
                del cells[name]
    if all(row.published is None for row in rows):
        for cells in plain:
            del cells["published_epsilon"]
    return list(plain)


def summaries(
    results: Sequence[TrialResult], rates: Mapping[Group, TunedRate], *, seeds: int
) -> list[Summary]:
    """Return one summary per cell of the grid; cells without a budget are merged into one.

    A cell whose rate could not be tuned has no results, but has a summary.
    """
    cells: dict[Group, list[TrialResult]] = {group: [] for group in rates}
    for result in results:
        cells.setdefault(group_of(result.key), []).append(result)
    found: dict[Group, Summary] = {}
    for group, members in cells.items():
        summary = _summary(dict(group), members, rates.get(group), seeds)
        found.setdefault(tuple(summary.key.items()), summary)
    return list(found.values())


def _summary(
    key: Mapping[str, Cell], members: Sequence[TrialResult], rate: TunedRate | None, seeds: int
) -> Summary:
    whole = {_seed(member): member.result for member in members if member.result is not None}
    first = next(iter(whole.values()), {})
    spent = [result["epsilon"] for result in whole.values()]
    published = [e for result in whole.values() if (e := result.get("published_epsilon"))]
    private = None not in spent
    if whole and not private and not published:
        key = {**key, EPSILON: None}
    return Summary(
        key=key,
        accuracies={seed: float(result["accuracy"]) for seed, result in whole.items()},
        curve=LearningCurve.of(whole.values()),
        failed=len(members) - len(whole) if members else seeds,
        diverged=sum(DIVERGED in (member.error or "") for member in members),
        rate=rate,
        spent=max(spent) if spent and private else None,
        published=max(published, default=None),
        first={name: first.get(name) for name in (*COMMON, MASKED, *OF_HIDDEN)},
        r_squared={
            seed: float(found[_R_SQUARED])
            for seed, result in whole.items()
            if _R_SQUARED in (found := result.get("metrics", {}))
        },
    )


def _seed(result: TrialResult) -> int:
    seed = result.key[SEED]
    assert isinstance(seed, int)
    return seed


def verdict(
    grid_file: GridFile,
    rows: Sequence[Summary],
    failures: Sequence[str],
    has_learned: Callable[[Summary], bool | None] = lambda _: None,
) -> str:
    """Return which mechanism is best at each budget, and how favorite and reference compare.

    They are compared in pairs by seed. The first line is a summary. Rows for which `has_learned` is
    False are compared with none.
    """
    private = [
        row
        for row in rows
        if row.epsilon is not None and row.published is None and has_learned(row) is not False
    ]
    settings = list(dict.fromkeys(row.others for row in private))
    compared = [
        Comparison.of(grid_file, [row for row in private if row.others == others])
        for others in settings
    ]
    lines = [_summarize(grid_file, compared), *(one.sentence() for one in compared)]
    level = [row for row in rows if row.epsilon is None and row.mean is not None]
    lines += [f"Without a budget, {row.full_name} reaches {row.mean:.2%}." for row in level]
    lines += [_published(row) for row in rows if row.published is not None]
    lines.append(_masked(rows))
    if grid_file.figure.target_accuracy is not None:
        lines += _targets(grid_file.figure.target_accuracy, rows)
    edges = [row for row in rows if row.rate and row.rate.at_edge]
    if edges:
        named = "; ".join(map(named_with_epsilon, edges))
        lines.append(
            f"The chosen learning rate lies at the edge of the grid for {named}: a wider grid "
            "might do better there."
        )
    if failures:
        diverged = sum(DIVERGED in failure for failure in failures)
        among = f", {diverged} of them because the model diverged" if diverged else ""
        lines.append(f"{len(failures)} trials failed{among}; they are listed below and in no mean.")
    return "\n".join(line for line in lines if line)


def named_with_epsilon(row: Summary) -> str:
    """Return the name of a row with all its axes.

    Args:
        row: The row.

    Returns:
        Such as "one bit, MNIST at epsilon 8".
    """
    return row.full_name + ("" if row.epsilon is None else f" at epsilon {row.epsilon:g}")


def _published(row: Summary) -> str:
    """Return a sentence about a published epsilon that is not a bound, and the accuracy reached."""
    sound = "none is known" if row.spent is None else f"epsilon {show_epsilon(row.spent, 3)}"
    reached = "no result" if row.mean is None else f"{row.mean:.2%}"
    return (
        f"{row.full_name} reaches {reached} at a published epsilon of {row.published:g}, which is "
        f"not a bound, so it is not compared; a bound for a whole client: {sound}."
    )


def _masked(rows: Sequence[Summary]) -> str:
    """Return the bytes of every mechanism's message, if some are masked for a secure sum."""
    if not any(row.first[MASKED] for row in rows):
        return ""
    found: dict[str, str] = {}
    for row in rows:
        sent, masked = row.first["payload_bytes_up_per_message"], row.first[MASKED]
        if sent is not None:
            text = f"{masked:,} masked ({sent:,.0f} of codes)" if masked else f"{sent:,.0f}"
            found.setdefault(row.full_name, f"{row.full_name} {text}")
    return f"Bytes that a client sends in a round, without headers: {'; '.join(found.values())}."


def _targets(target: float, rows: Sequence[Summary]) -> list[str]:
    """Return the rounds to the target, one line per setting."""
    found: dict[tuple[Cell, ...], list[Summary]] = {}
    for row in rows:
        found.setdefault(row.others, []).append(row)
    lines = []
    for members in found.values():
        where = members[0].named(apart_from=()).removeprefix(members[0].mechanism)
        counts = ", ".join(f"{row.mechanism} {row.rounds_to(target)}" for row in members)
        lines.append(f"Rounds until the mean is {target:.0%}{where}: {counts}.")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One budget: the best mechanism, and the paired difference of favorite and reference."""

    where: str
    best: Summary | None
    favorite: Summary | None
    reference: Summary | None
    margin: float | None = None

    @classmethod
    def of(cls, grid_file: GridFile, rows: Sequence[Summary]) -> "Comparison":
        """Return the comparison of the rows of one budget."""
        whole = [row for row in rows if row.mean is not None]
        named = {row.mechanism: row for row in whole}
        about = grid_file.experiment
        further = rows[0].full_name.removeprefix(rows[0].mechanism)
        return cls(
            where=f"At epsilon = {rows[0].epsilon:g}{further}",
            best=max(whole, key=lambda row: row.mean or 0.0, default=None),
            favorite=named.get(about.favorite),
            reference=named.get(about.reference),
            margin=about.margin,
        )

    @property
    def difference(self) -> tuple[float, float] | None:
        """Mean and half width over the seeds that both have; None if there are fewer than two."""
        if self.favorite is None or self.reference is None:
            return None
        ours, theirs = self.favorite.accuracies, self.reference.accuracies
        paired = [ours[seed] - theirs[seed] for seed in self.pairs]
        return mean_and_half_width(paired) if len(paired) >= 2 else None

    @property
    def pairs(self) -> list[int]:
        """The seeds that both have."""
        if self.favorite is None or self.reference is None:
            return []
        return [seed for seed in self.favorite.accuracies if seed in self.reference.accuracies]

    @property
    def within(self) -> bool | None:
        """Whether the difference is at most the margin; None if the interval does not tell."""
        if self.margin is None or self.difference is None:
            return None
        mean, half = self.difference
        if abs(mean) + half <= self.margin:
            return True
        return False if abs(mean) - half > self.margin else None

    def sentence(self) -> str:
        if self.best is None or self.best.mean is None:
            return f"{self.where}, every trial failed."
        text = f"{self.where}, {self.best.mechanism} is best ({self.best.mean:.2%}{self._spent()})"
        if self.best is self.favorite is self.reference:
            return f"{text}."
        if self.favorite is None or self.reference is None or self.difference is None:
            return f"{text}; favorite and reference cannot be compared there."
        mean, half = self.difference
        return (
            f"{text}; {self.favorite.mechanism} lies {self._place()} the interval of "
            f"{self.reference.mechanism}, and paired by seed differs from it by {100 * mean:+.2f} "
            f"points ({100 * (mean - half):+.2f} to {100 * (mean + half):+.2f}).{self._margin()}"
        )

    def _margin(self) -> str:
        if self.margin is None:
            return ""
        match self.within:
            case True:
                told = "shown"
            case False:
                told = "not so"
            case None:
                told = "cannot be told"
        return f" Within {100 * self.margin:g} points: {told}, with {len(self.pairs)} pairs."

    def _spent(self) -> str:
        spent = self.best.spent if self.best else None
        return "" if spent is None else f", {show_epsilon(spent, 3)} spent"

    def _place(self) -> str:
        assert self.favorite is not None
        assert self.reference is not None
        mean, interval = self.favorite.mean, self.reference.interval
        assert mean is not None
        assert interval is not None
        return "below" if mean < interval[0] else "above" if mean > interval[1] else "inside"


def _summarize(grid_file: GridFile, compared: Sequence[Comparison]) -> str:
    about = grid_file.experiment
    found = [one.difference for one in compared]
    known = [difference for difference in found if difference]
    if not known or about.favorite == about.reference:
        return ""
    below = sum(mean + half < 0.0 for mean, half in known)
    above = sum(mean - half > 0.0 for mean, half in known)
    cells = "settings" if set(grid_file.axes) - {MECHANISM, EPSILON, RATE} else "budgets"
    return (
        f"Of {len(known)} {cells}, {about.favorite} is below {about.reference} in {below}, above "
        f"it in {above} and not clearly different in {len(known) - below - above} (paired by "
        "seed, 95% intervals)."
    )
