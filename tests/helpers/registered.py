"""Every registered mechanism, with each of its examples on each of its domains."""

import pytest

from sottovoce.mechanisms import registry

CASES = [
    pytest.param(
        registration,
        example,
        domain,
        id=f"{registration.kind}-{n}-{type(domain).__name__}",
        marks=[pytest.mark.slow] * (n >= 1),  # more of the same mechanism
    )
    for registration in registry.registrations()
    for n, example in enumerate(registration.examples)
    for domain in registration.example_domains
]
