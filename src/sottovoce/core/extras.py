"""Optional packages: what each is for, and how to get it."""

from dataclasses import dataclass

from sottovoce.core.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Optional:
    """A package by the name under which it is imported; `extra` is None where none brings it."""

    module: str
    distribution: str
    extra: str | None
    purpose: str

    @property
    def install(self) -> str:
        wanted = f"'sottovoce[{self.extra}]'" if self.extra else self.distribution
        return f"pip install {wanted}"


CORE = ("numpy", "scipy", "cryptography", "pydantic", "typer", "rich")
OPTIONAL = (
    Optional(module="torch", distribution="torch", extra="learn", purpose="training models"),
    Optional(
        module="sklearn", distribution="scikit-learn", extra="learn", purpose="the bundled digits"
    ),
    Optional(
        module="safetensors", distribution="safetensors", extra="learn", purpose="exported models"
    ),
    Optional(module="flwr", distribution="flwr", extra="flower", purpose="several machines"),
    Optional(module="jinja2", distribution="jinja2", extra="report", purpose="reports as pages"),
    Optional(
        module="tensorboard",
        distribution="tensorboard",
        extra="tensorboard",
        purpose="curves in TensorBoard",
    ),
    Optional(
        module="mlflow", distribution="mlflow-skinny", extra="mlflow", purpose="runs in MLflow"
    ),
    Optional(module="pandas", distribution="pandas", extra=None, purpose="data frames"),
    Optional(module="triton", distribution="triton", extra=None, purpose="kernels on NVIDIA GPUs"),
)
# What else an extra brings: the first of these that is missing is what a person hears of.
_ALONG = {
    **dict.fromkeys(("httpx", "starlette", "uvicorn"), "flwr"),
    **dict.fromkeys(("sqlalchemy", "alembic"), "mlflow"),
}


def find(module: str) -> Optional:
    """The optional package that brings a module; UnknownNameError for what is none."""
    name = module.split(".")[0]
    for one in OPTIONAL:
        if one.module == _ALONG.get(name, name):
            return one
    raise UnknownNameError.among("optional package", name, [one.module for one in OPTIONAL])
