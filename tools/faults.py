"""The faults that `tools/mutations.py` plants: one small change each, under a theorem's title."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of one file."""

    theorem: str  # its title on the page
    path: str  # under src/sottovoce, or from papers/ on
    old: str  # occurs there once
    new: str

    @property
    def place(self) -> str:
        """Where the file is, from the root of the repository on."""
        return self.path if self.path.startswith("papers/") else f"src/sottovoce/{self.path}"

    @property
    def name(self) -> str:
        return f"{self.path}: {self.old.strip()} -> {self.new.strip()}"


FAULTS = (
    Fault(
        "Renyi divergences add up",
        "privacy/renyi.py",
        "math.fsum(count * ",
        "math.fsum(0.9 * count * ",
    ),
    Fault(
        "From Renyi to (epsilon, delta)",
        "privacy/conversion.py",
        "return divergence + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order))",
        "return divergence + math.log1p(-1.0 / order) - (math.log(delta) + 2 * math.log(order))",
    ),
    Fault(
        "Zero-concentrated privacy",
        "privacy/zcdp.py",
        "return min(event.epsilon**2 / 2.0, event.epsilon)",
        "return min(event.epsilon**2 / 8.0, event.epsilon)",
    ),
    Fault(
        "The Gaussian mechanism, exactly",
        "privacy/divergences.py",
        "return min(1.0, math.exp(upper + slack) * -math.expm1(gap))",
        "return min(1.0, 0.999 * math.exp(upper + slack) * -math.expm1(gap))",
    ),
    Fault(
        "Connecting the dots errs upward",
        "privacy/loss_distributions.py",
        "masses[1:] += p - lower",
        "masses[1:] += 0.999 * p - lower",
    ),
    Fault(
        "Sensitivity of a mean",
        "core/domains.py",
        "return 2.0 * shift",
        "return shift",
    ),
    Fault(
        "Renyi divergence within an exponential family",
        "mechanisms/gauss_hermite.py",
        "shift = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier",
        "shift = 0.9 * self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier",
    ),
    Fault(
        "Logistic bits: the exact worst case",
        "privacy/divergences.py",
        "logit = math.log(above) - math.log(below) - step",
        "logit = math.log(above) - math.log(below)",
    ),
    Fault(
        "Logistic bits: the exact worst case",
        "privacy/divergences.py",
        "return min(gaussian, dimension * worst * (1.0 + _ROUNDING))",
        "return min(gaussian, math.sqrt(dimension) * worst * (1.0 + _ROUNDING))",
    ),
    Fault(
        "Bits against fair bits: the cubic bound",
        "privacy/cubic.py",
        "log_b = -y - power * math.log(power) - (power - 1.0) * math.log(growth)",
        "log_b = -y - power * math.log(power) - (power - 1.0) * math.log(growth) - 0.7",
    ),
    Fault(
        "Interpolated MVU",
        "mechanisms/interpolated_mvu.py",
        "shift = self.beta * self.input_domain.relative_sensitivity(adjacency) / 2.0",
        "shift = self.beta * self.input_domain.relative_sensitivity(adjacency) / 4.0",
    ),
    Fault(
        "CLDP: only one flipped sign depends on the data",
        "mechanisms/cldp.py",
        "share = 0.5 if against_zero else 1.0",
        "share = 0.5",
    ),
    Fault(
        "The tilted law",
        "mechanisms/design/seeds.py",
        "return cut - math.log1p(-self.tail) + floor + self._failures + self._rounding",
        "return -cut",
    ),
    Fault(
        "The cubic bound holds after truncation",
        "privacy/cubic.py",
        "return min(1.0, math.exp(excess) * power_delta(mu, epsilon - excess, 3))",
        "return min(1.0, power_delta(mu, epsilon, 3))",
    ),
    Fault(
        "Laplace noise",
        "privacy/additive_noise.py",
        "zero_concentrated = order * shift * shift / 2.0",
        "zero_concentrated = order * shift * shift / 8.0",
    ),
    Fault(
        "Staircase noise",
        "privacy/additive_noise.py",
        "exact = (gap * min(shift, 2.0 * nu) + b * shift)",
        "exact = (gap * min(shift, nu) + b * shift)",
    ),
    Fault(
        "Skellam noise on a rounded grid",
        "mechanisms/skellam.py",
        "gaussian = order * square / (2.0 * variance)",
        "gaussian = order * square / (4.0 * variance)",
    ),
    Fault(
        "Skellam noise on a rounded grid",
        "mechanisms/skellam.py",
        "on_average = unit * (square + min(dimension / 4.0, l1_shift))",
        "on_average = 0.9 * unit * (square + min(dimension / 4.0, l1_shift))",
    ),
    Fault(
        "A sign of Gaussian noise is post-processing",
        "mechanisms/stochastic_sign.py",
        "mu = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier",
        "mu = self.input_domain.relative_sensitivity(adjacency) / self.noise_multiplier / 2.0",
    ),
    Fault(
        "Uniform permutations",
        "core/randomness.py",
        "partner = uniform_below(last + 1, words[last], keystream, last)",
        "partner = uniform_below(last, words[last], keystream, last)",
    ),
    Fault(
        "Poisson sampling of any mechanism",
        "privacy/sampling.py",
        "logs = logs[2:] + _log_expm1(exponents[2:])",
        "logs = logs[2:] + _log_expm1(0.9 * exponents[2:])",
    ),
    Fault(
        "Sampling under replace-one",
        "privacy/sampling.py",
        "logs = logs[2:] + _log_ternary(exponents, event.event)",
        "logs = logs[2:] + _log_ternary(exponents, event.event) - math.log(16.0)",
    ),
    Fault(
        "Pure privacy of a sample",
        "privacy/pure.py",
        "return min(epsilon, math.log1p(rate * math.expm1(epsilon)) * (1.0 + _ROUNDING))",
        "return min(epsilon, rate * epsilon)",
    ),
    Fault(
        "Shuffling",
        "privacy/shuffling.py",
        "return lower_buckets(clients - 1, math.exp(-eps0) if eps0 <= _NO_CLONES else 0.0)",
        "return lower_buckets(clients, 2.0 / (1.0 + math.exp(eps0)))",
    ),
    Fault(
        "A secret order, by bounded densities",
        "privacy/shuffling.py",
        "self.lo, self.hi = lo, max(hi, 2.0 - lo + _LEAST_MARGIN)",
        "self.lo, self.hi = lo, hi + _LEAST_MARGIN",
    ),
    Fault(
        "A secret order, by bounded densities",
        "privacy/shuffling.py",
        "lower_buckets(clients - 1, lo)",
        "lower_buckets(clients + 1, lo)",
    ),
    Fault(
        "Random allocation of Gaussian noise",
        "privacy/allocation.py",
        "return found / steps + term.mean_excess(high * cell)",
        "return found / steps",
    ),
    Fault(
        "A second attempt behind a channel pays for both",
        "protocol/charging.py",
        "return Repeated(event=seen, count=2) if attempt == 1 else seen",
        "return seen",
    ),
    Fault(
        "Exact intervals for counts",
        "core/statistics.py",
        "return np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, error), 0.0)",
        "return np.where(k > 0, betaincinv(k + 1, n - k + 1, error), 0.0)",
    ),
    Fault(
        "Auditing with one run",
        "auditing/lower_bounds.py",
        "return tail, 2.0 * canaries * float(lost.max(initial=0.0))",
        "return tail, canaries * float(lost.max(initial=0.0))",
    ),
    Fault(
        "One code per person",
        "analytics/assignment.py",
        "numbers = np.arange(first + 1, first + 1 + count, dtype=np.uint64)",
        "numbers = np.arange(1, 1 + count, dtype=np.uint64)",
    ),
    Fault(
        "A zero-out epsilon counts twice between two inputs",
        "privacy/shuffling.py",
        "return 2.0 * epsilon if event.adjacency == Adjacency.ZERO_OUT else epsilon",
        "return epsilon",
    ),
    Fault(
        "A record in a message with other records",
        "privacy/compositions.py",
        "largest_loss=2.0 * event.largest_loss",
        "largest_loss=event.largest_loss",
    ),
    Fault(
        "Staircase noise in L1 balls, and shifts of more than one step",
        "mechanisms/staircase.py",
        "return PureDp(epsilon=math.ceil(shift) * self.step_epsilon, adjacency=adjacency)",
        "return PureDp(epsilon=shift * self.step_epsilon, adjacency=adjacency)",
    ),
    Fault(
        "The first accepted seed, or the last tried",
        "mechanisms/seeds.py",
        "return bytes(seeds[found[0] if len(found) else -1])",
        "return bytes(seeds[found[0] if len(found) else 0])",
    ),
    Fault(
        "Composition by FFT errs upward",
        "privacy/loss_distributions.py",
        "weights *= decay[:size]",
        "weights *= 0.99 * decay[:size]",
    ),
    Fault(
        "Changes to a ledger are detected",
        "ledger/verification.py",
        "if not isinstance(stored, bytes) or stored != _link(link, tuple(content)):",
        "if not stored:",
    ),
    Fault(
        "The epsilons of several questions add up",
        "analytics/charging.py",
        "total = pure_epsilon(compose_repeated(charges))",
        "total = pure_epsilon(asked.event)",
    ),
    Fault(
        "The map never increases a distance",
        "analytics/places.py",
        "east = np.cos(phi) * np.sin(lam)",
        "east = math.cos(phi_0) * np.sin(lam)",
    ),
    Fault(
        "Pure privacy is dominated by randomized response",
        "privacy/loss_pairs.py",
        "lie = math.exp(-epsilon) / (1.0 + math.exp(-epsilon))",
        "lie = 1.01 * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))",
    ),
    Fault(
        "Calibration keeps the budget",
        "privacy/calibration.py",
        "    return safe\n\n\ndef rounds_within",
        "    return loose\n\n\ndef rounds_within",
    ),
    Fault(
        "Projection onto an L2 ball is a contraction",
        "core/domains.py",
        "return vector if scale == 1.0 else vector * scale",
        "return vector if scale == 1.0 else -vector * scale",
    ),
    Fault(
        "The certificate for M",
        "mechanisms/design/families.py",
        "return second, second + np.abs(third) * width / 2.0 + curvature * width**2 / 8.0",
        "return second, second * 0.999",
    ),
    Fault(
        "The privacy profile of a single logistic bit",
        "privacy/loss_pairs.py",
        "part = -np.expm1((low - high) / 2.0) / -math.expm1(-self.shift)",
        "part = -np.expm1((low - high) / 2.0) / -math.expm1(-self.shift) * 0.99",
    ),
    Fault(
        "Vectors through tables in an L2 ball",
        "privacy/envelope.py",
        "return (dimension * surplus + price * budget) * (1.0 + 2.0**-48)",
        "return (dimension * surplus + 0.99 * price * budget) * (1.0 + 2.0**-48)",
    ),
    Fault(
        "The step law",
        "mechanisms/design/seeds.py",
        "low, high = max(0.0, middle - below), min(1.0, middle + above)",
        "low, high = middle, middle",
    ),
    Fault(
        "The norm is one tree of additions",
        "core/domains.py",
        "tiles *= tiles",
        "tiles = (tiles * tiles).astype(np.float32).astype(np.float64)",
    ),
    Fault(
        "A sampled Gaussian at any order",
        "privacy/sampling.py",
        "moment = float(moment) + 2.0**-44",
        "moment = float(moment) * 0.999",
    ),
    Fault(
        "Binomial tails",
        "privacy/binomial.py",
        "return np.asarray(np.where(inner, value, np.where(k < 0.0, 0.0, 1.0)))",
        "return np.asarray(np.where(inner, 0.99 * value, np.where(k < 0.0, 0.0, 1.0)))",
    ),
    Fault(
        "Secure sums of clamped bits",
        "privacy/secure_sum.py",
        "return min(local, high, chord / (order - 1.0) * (1.0 + _ROUNDING))",
        "return 0.5 * min(local, high, chord / (order - 1.0) * (1.0 + _ROUNDING))",
    ),
    Fault(
        "Central noise and a secret sample",
        "mechanisms/release.py",
        "rate=client_sampling_rate, scheme",
        "rate=client_sampling_rate * 0.9, scheme",
    ),
    Fault(
        "A secret order",
        "mechanisms/release.py",
        "if adjacency is not Adjacency.REPLACE_ONE:",
        "if adjacency is None:",
    ),
    Fault(
        "A secret order",
        "mechanisms/release.py",
        "    if _records(mechanism) != 1:\n        raise",
        "    if _records(mechanism) < 1:\n        raise",
    ),
    Fault(
        "A record in a message with other records",
        "mechanisms/release.py",
        "event=drop_zero_reference(event) if own_records else event",
        "event=event",
    ),
    Fault(
        "Central noise and a secret sample",
        "mechanisms/release.py",
        'if sample.hidden_by == "secure-sum" and _records(mechanism) != 1:',
        'if sample.hidden_by == "secure-sum" and _records(mechanism) < 1:',
    ),
    Fault(
        "Central noise and a secret sample",
        "mechanisms/release.py",
        "event = mechanism.privacy(adjacency)",
        "event = mechanism.privacy(Adjacency.ZERO_OUT)",
    ),
    Fault(
        "Budgets of one client",
        "protocol/charging.py",
        "return ledger.clients_with_budget(pending, before=(plan.run, plan.round))",
        "return frozenset(part.client for part in plan.clients)",
    ),
    Fault(
        "What an algorithm computes from messages is free",
        "federated/algorithms/scaffold.py",
        "uplinks: ClassVar[int] = 2",
        "uplinks: ClassVar[int] = 1",
    ),
    Fault(
        "NbAFL is charged for the whole model",
        "papers/src/sottovoce_papers/algorithms/nbafl.py",
        "return L2Ball(dimension=dimension, radius=self.clip_norm)",
        "return L2Ball(dimension=dimension, radius=self.clip_norm, records=num_samples)",
    ),
    Fault(
        "Randomized response for categories",
        "mechanisms/randomized_response.py",
        "return round_pure(k_ary(epsilon, levels), epsilon)",
        "return round_pure(k_ary(1.01 * epsilon, levels), 1.01 * epsilon)",
    ),
    Fault(
        "Confidence intervals for bounded parameters",
        "analytics/intervals.py",
        "np.maximum(sigma, 1e-200), low, high) >= 1.0 - confidence",
        "np.maximum(sigma, 1e-200), low, high) >= 1.2 * (1.0 - confidence)",
    ),
    Fault(
        "Opposite contributions are the worst in a sample",
        "privacy/sampling.py",
        "for shift in (0.0, -self.center, self.center)",
        "for shift in (0.0, -self.center, 0.9 * self.center)",
    ),
    Fault(
        "Replace-one for exponential families on a Poisson sample",
        "privacy/sampling.py",
        "growth = math.exp(square) * (1.0 + 2.0**-50)",
        "growth = math.exp(0.8 * square)",
    ),
    Fault(
        "A site's total holds for orders that depend on earlier answers",
        "privacy/filters.py",
        "if _is_repeated(history) and within(",
        "if within(",
    ),
    Fault(
        "A site's total holds for orders that depend on earlier answers",
        "privacy/filters.py",
        "left = self.delta - self._first_delta - self._pure_delta",
        "left = self.delta",
    ),
    Fault(
        "A site's total holds for orders that depend on earlier answers",
        "deployment/site.py",
        "begins = bool(pending) and not history and first is None",
        "begins = bool(pending)",
    ),
    Fault(
        "Bits of any logits: fifth powers",
        "privacy/cubic.py",
        "case OneBit():\n            return event.shift / 2.0",
        "case OneBit():\n            return event.shift / 2.1",
    ),
    Fault(
        "Bits of any logits: fifth powers",
        "privacy/cubic.py",
        "return event.shift  # A coordinate that moves by s scales has losses from -s to s.",
        "return event.shift / 1.2",
    ),
    Fault(
        "Bits of any logits: fifth powers",
        "privacy/cubic.py",
        "p, r = square * (square + 9.0) + 8.0, square * (square + 10.0) + 15.0",
        "p, r = square * (square + 9.0) + 7.9, square * (square + 10.0) + 15.0",
    ),
    Fault(
        "Sampled bits with the contribution in the first neighbor: cubes and fifth powers",
        "privacy/moment_comparison.py",
        "return tuple(rounds), 3 if all(bit.against_zero for bit in bits) else 5",
        "return tuple(rounds), 3",
    ),
    Fault(
        "Sampled bits with the contribution in the first neighbor: cubes and fifth powers",
        "privacy/moment_comparison.py",
        "return d * math.log1p(math.tanh(mu / math.sqrt(d)) ** 2) * _UP",
        "return math.log1p(math.tanh(mu) ** 2) * _UP",
    ),
    Fault(
        "Sampled bits with the contribution in the first neighbor: cubes and fifth powers",
        "privacy/moment_laws.py",
        "log_beyond += _log_moment(parts, power - 1.0) + 1e-6",
        "log_beyond = -math.inf",
    ),
    Fault(
        "Sampled releases with the contribution in the second neighbor: two points",
        "privacy/moment_comparison.py",
        "return one_bit_renyi(part.shift, part.dimension, 2.0)",
        "return one_bit_renyi(part.shift, part.dimension, 2.0) / 4.0",
    ),
    Fault(
        "Sampled releases with the contribution in the second neighbor: two points",
        "privacy/moment_comparison.py",
        "-math.log((s + math.sqrt(rest)) / 2.0)",
        "-math.log(s + math.sqrt(rest))",
    ),
    Fault(
        "Sampled releases with the contribution in the second neighbor: two points",
        "privacy/moment_laws.py",
        "masses * (1.0 - upper)",
        "masses * (1.0 - np.ceil(upper))",
    ),
    Fault(
        "Bellman composition",
        "privacy/bellman_steps.py",
        "left = 1.0 - (1.0 - values[..., :1]) * decay * (1.0 - ROUNDING)",
        "left = np.broadcast_to(values[..., :1], (*values.shape[:-1], self.size))",
    ),
    Fault(
        "Bellman composition",
        "privacy/bellman_steps.py",
        "weights.append((up * (1.0 - share), up * share))",
        "weights.append((0.0, up))",
    ),
    Fault(
        "Bellman composition",
        "privacy/dominating_pairs.py",
        "return SampledPair(base, rate), SampledAwayPair(away, rate)",
        "return SampledPair(base, rate), SampledAwayPair(base, rate)",
    ),
    Fault(
        "Bellman composition",
        "privacy/loss_distributions.py",
        "width = max(high - low, 2e-9 * (1.0 + reach))",
        "width = max(high - low, 1e-9 * reach)",
    ),
    Fault(
        "A few bits against fair ones",
        "privacy/bellman_steps.py",
        "return _letters(self.pairs(shift * math.sqrt(spent / cells)), grid)",
        "return _letters(self.pairs(shift * (spent / cells)), grid)",
    ),
    Fault(
        "Secure sums of few clients",
        "privacy/finite_menus.py",
        "    for ups in range(clients):",
        "    for ups in range(1):",
    ),
    Fault(
        "Secure sums of few clients",
        "privacy/finite_menus.py",
        "first = ((no_x + no_y) / d, (growth + 1.0) * (x + y) / d)",
        "first = ((no_x + no_y) / d, 0.98 * (growth + 1.0) * (x + y) / d)",
    ),
    Fault(
        "Secure sums of few clients",
        "privacy/secure_sum.py",
        "costs.extend(menu.ends[:-1])",
        "costs.extend(menu.ends[1:])",
    ),
    Fault(
        "From zero-out to replace-one",
        "privacy/compositions.py",
        "rho=4.0 * part.rho",
        "rho=2.0 * part.rho",
    ),
    Fault(
        "From zero-out to replace-one",
        "privacy/compositions.py",
        "mu=2.0 * part.mu",
        "mu=2.0**0.5 * part.mu",
    ),
    Fault(
        "Every release of several ledgers counts",
        "ledger/copies.py",
        "several_names = len(self._names[run]) > 1",
        "several_names = len(self._names[run]) > 2",
    ),
    Fault(
        "Every release of several ledgers counts",
        "ledger/copies.py",
        "is_same = None not in commitments and len(set(commitments)) == 1",
        "is_same = None not in commitments",
    ),
    Fault(
        "Statistics in the same message",
        "federated/algorithms/client_statistics.py",
        "return math.sqrt(1.0 - taken)",
        "return math.sqrt(1.0 - 0.5 * taken)",
    ),
    Fault(
        "Statistics in the same message",
        "learning/task.py",
        "groups = [len(labels)] if self.is_chain else sizes.tolist()",
        "groups = [len(labels)]",
    ),
    Fault(
        "Local DP-SGD",
        "mechanisms/release.py",
        "Repeated(event=step, count=domain.steps)",
        "Repeated(event=step, count=max(1, domain.steps - 1))",
    ),
    Fault(
        "Local DP-SGD",
        "federated/algorithms/noisy_steps.py",
        "rate, expected = self.batch_size / num_samples, self.batch_size",
        "rate, expected = self.batch_size / (num_samples + 1), self.batch_size",
    ),
    Fault(
        "Local DP-SGD",
        "federated/algorithms/noisy_steps.py",
        "words < np.uint64(int(rate * 2.0**64))",
        "words < np.uint64(int(rate**0.8 * 2.0**64))",
    ),
    Fault(
        "Local DP-SGD",
        "federated/algorithms/noisy_steps.py",
        "(grid / round(expected))",
        "(grid / max(1, round(expected) - 1))",
    ),
    Fault(
        "Local DP-SGD",
        "federated/simulation/noisy_models.py",
        "means = totals / self.expected",
        "means = 1.2 * totals / self.expected",
    ),
    Fault(
        "Local DP-SGD",
        "federated/simulation/noisy_models.py",
        "inside = (draws < self.rates[:, None]) & own",
        "inside = (draws < 1.2 * self.rates[:, None]) & own",
    ),
    Fault(
        "The best of a random number of trials",
        "privacy/selection.py",
        "divergence + (1.0 + law.eta) * extra",
        "divergence + law.eta * extra",
    ),
    Fault(
        "The best of a random number of trials",
        "runs/tune.py",
        "make_schedule=_own_cohorts",
        "make_schedule=None",
    ),
)
