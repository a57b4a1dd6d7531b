"""The optional packages: what each is for, and how to install it."""

from dataclasses import dataclass

from sottovoce.core.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalPackage:
    """An optional package.

    Attributes:
        module: The name under which it is imported.
        distribution: Its name on PyPI.
        extra: The extra of Sottovoce that installs it; None if no extra does.
        purpose: What Sottovoce needs it for.
    """

    module: str
    distribution: str
    extra: str | None
    purpose: str

    @property
    def install(self) -> str:
        """The shell command that installs the package, such as "pip install 'sottovoce[learn]'"."""
        wanted = f"'sottovoce[{self.extra}]'" if self.extra else self.distribution
        return f"pip install {wanted}"


CORE = ("numpy", "scipy", "cryptography", "pydantic", "typer", "rich")
OPTIONAL = (
    OptionalPackage(module="torch", distribution="torch", extra="learn", purpose="training models"),
    OptionalPackage(
        module="sklearn", distribution="scikit-learn", extra="learn", purpose="the bundled digits"
    ),
    OptionalPackage(
        module="safetensors", distribution="safetensors", extra="learn", purpose="exported models"
    ),
    OptionalPackage(module="flwr", distribution="flwr", extra="flower", purpose="several machines"),
    OptionalPackage(
        module="jinja2", distribution="jinja2", extra="report", purpose="reports as pages"
    ),
    OptionalPackage(
        module="tensorboard",
        distribution="tensorboard",
        extra="tensorboard",
        purpose="curves in TensorBoard",
    ),
    OptionalPackage(
        module="mlflow", distribution="mlflow-skinny", extra="mlflow", purpose="runs in MLflow"
    ),
    OptionalPackage(module="pandas", distribution="pandas", extra=None, purpose="data frames"),
    OptionalPackage(
        module="triton", distribution="triton", extra=None, purpose="kernels on NVIDIA GPUs"
    ),
)
# Dependencies of optional packages: if one is missing, the error names the optional package.
_ALONG = {
    **dict.fromkeys(("httpx", "starlette", "uvicorn"), "flwr"),
    **dict.fromkeys(("sqlalchemy", "alembic"), "mlflow"),
}


def find(module: str) -> OptionalPackage:
    """Return the optional package that brings a module.

    Args:
        module: The module that could not be imported, such as "torch.nn".

    Returns:
        The package; for a dependency of an optional package, that package.

    Raises:
        UnknownNameError: No optional package brings the module.
    """
    name = module.split(".")[0]
    for one in OPTIONAL:
        if one.module == _ALONG.get(name, name):
            return one
    raise UnknownNameError.among("optional package", name, [one.module for one in OPTIONAL])
