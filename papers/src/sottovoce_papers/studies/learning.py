"""The experiments that are files of the folder `grids`: models trained over a grid."""

from sottovoce_papers.learning.study import register_grid_experiments

register_grid_experiments()
