"""The version of the package, also exported as `sottovoce.__version__`."""

__version__ = "0.2.0"
