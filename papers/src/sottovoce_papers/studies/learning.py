"""The experiments that are files in the catalogue: models trained over a grid."""

from sottovoce_papers.learning.study import enter_catalogue

enter_catalogue()
