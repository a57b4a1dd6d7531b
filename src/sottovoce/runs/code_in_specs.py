"""Code that a spec names: it is imported and run, so a spec from a file needs a person's word."""

from sottovoce.core.errors import ConfigError
from sottovoce.runs.spec import RunSpec


def check_code_allowed(spec: RunSpec, *, allow_code: bool, how: str = "--allow-code") -> None:
    """Refuse a spec that would import code, unless that is allowed.

    Args:
        spec: What was read from a file, a dictionary or a run folder.
        allow_code: Whether its user has said that the code may run.
        how: What says so, for the error.
    """
    if spec.model.user_factory is not None and not allow_code:
        raise ConfigError(
            f"the spec '{spec.name}' imports and runs code: model.factory = "
            f"'{spec.model.user_factory}'. Read that code, and if you trust it, allow it with {how}"
        )
