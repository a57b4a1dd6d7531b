"""The experiments that are files in the catalogue: models trained over a grid."""

from sottovoce.experiments.learning_study import enter_catalogue

enter_catalogue()
