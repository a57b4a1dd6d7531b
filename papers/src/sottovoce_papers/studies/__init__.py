"""The experiments, one module or folder each; they are found by walking this package."""
