"""The list of all fuzzed entrances."""

from fuzzing import command_line, files, ledgers, questions, runs, seeded, sites, specs, wire

ENTRANCES = (
    *wire.ENTRANCES,
    *seeded.ENTRANCES,
    *specs.ENTRANCES,
    *ledgers.ENTRANCES,
    *questions.ENTRANCES,
    *sites.ENTRANCES,
    *files.ENTRANCES,
    *runs.ENTRANCES,
    *command_line.ENTRANCES,
)
