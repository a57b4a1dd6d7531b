"""The command `sottovoce doctor`, which examines an installation and runs a self test."""

import typer

from sottovoce.cli.output import Json, print_fields, print_json, print_table, report_progress, say

_UNUSABLE = 1


def doctor(as_json: Json = False) -> None:
    """Show what is installed, which kernels run and where data is, and run a self test.

    Exit with 1 if a self test fails.
    """
    from sottovoce.cli.diagnosis import diagnose  # loads kernels and tables

    with report_progress():
        found = diagnose()
    if as_json:
        print_json(found.to_dict())
        raise typer.Exit(0 if found.usable else _UNUSABLE)
    kernels = found.kernels
    print_fields(
        {
            "sottovoce": f"{found.version} in {found.installed_at}",
            "python": f"{found.python} ({found.executable})",
            "platform": found.platform,
            "kernels in use": f"{kernels.in_use} (of {', '.join(kernels.levels)})",
            "kernels on a GPU": "yes" if kernels.cuda else "no",
            "threads": kernels.threads,
            "C compiler": kernels.compiler,
            **{name: path or "not found" for name, path in found.programs.items()},
        }
    )
    print_table(
        ["package", "version", "for"],
        [[one.name, one.version or "not installed", one.purpose] for one in found.packages],
    )
    print_table(
        ["folder for", "where", "chosen by", "state", "holds"],
        [
            [
                place.what,
                place.path,
                place.chosen_by,
                _state(exists=place.exists, writable=place.writable),
                place.holds,
            ]
            for place in found.places
        ],
    )
    print_table(
        ["self test", "", "result"],
        [[check.name, "ok" if check.ok else "FAILS", check.detail] for check in found.checks],
    )
    for problem in found.problems:
        say(f"problem: {problem.problem}\n  remedy: {problem.remedy}")
    verdict = "usable" if found.usable else "not usable: a self test fails"
    say(f"{verdict}; {len(found.problems) or 'no'} problem(s)")
    raise typer.Exit(0 if found.usable else _UNUSABLE)


def _state(*, exists: bool, writable: bool) -> str:
    if not writable:
        return "not writable"
    return "exists" if exists else "created when needed"
