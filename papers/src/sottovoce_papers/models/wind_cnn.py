"""A one-dimensional convolutional network for series, such as wind power from forecasts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.learning.models.register import InitialWeights, InputShape, flat_size, register_model

if TYPE_CHECKING:
    from torch import nn

SHORTEST_SERIES = 4


@register_model("wind_cnn", summary="one-dimensional convolutions, for series")
@dataclass(frozen=True, slots=True, kw_only=True)
class WindCnn:
    """Regression on (channels, length): two convolutions over five steps, one hidden layer.

    `filters` in the first convolution, twice as many in the second, each with ReLU and average
    pooling by two; 32 hidden units. The outputs are unbounded.
    """

    initial_weights: ClassVar[InitialWeights] = "relu"
    filters: int = 16

    def __post_init__(self) -> None:
        parameter_rules.integer("filters", self.filters, low=1, high=2**12)

    def build(self, input_shape: InputShape, num_outputs: int) -> "nn.Module":
        from torch import nn

        if len(input_shape) != 2 or input_shape[1] < SHORTEST_SERIES:
            raise ParameterError(
                f"WindCnn takes series (channels, length) of at least {SHORTEST_SERIES} steps, got "
                f"samples of shape {input_shape}; reshape the data or use the model 'mlp'"
            )
        body = nn.Sequential(
            nn.Conv1d(input_shape[0], self.filters, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.AvgPool1d(2),
            nn.Conv1d(self.filters, 2 * self.filters, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.AvgPool1d(2),
            nn.Flatten(),
        )
        head = [nn.Linear(flat_size(body, input_shape), 32), nn.ReLU(), nn.Linear(32, num_outputs)]
        return nn.Sequential(*body, *head)
