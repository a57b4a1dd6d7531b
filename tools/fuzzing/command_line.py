"""Arguments of the command line, in this process; nothing that trains, serves or fetches."""

import contextlib
import io
import os
import sys
from pathlib import Path
from random import Random

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import ODD_NUMBERS, ODD_TEXTS, text_mutated
from sottovoce.cli import mistakes
from sottovoce.cli.main import app
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import SottovoceError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.events import PureDp

_LINES = (
    "ledger show {ledger} --delta 1e-6",
    "ledger show {ledger} --client ada --delta 1e-6 --json",
    "ledger export {ledger} --client ada",
    "ledger verify {ledger} --json",
    "ledger compare {ledger} {ledger} --json",
    "mechanism list --json",
    "mechanism show gaussian",
    "mechanism show mvu --json",
    "privacy spend --mechanism gaussian --param noise_multiplier=1 --rounds 10 --delta 1e-5",
    "privacy spend --mechanism laplace --param noise_multiplier=2 --rounds 3 --delta 1e-6 --json",
    "estimate mean {csv} --column age --lower 0 --upper 120 --epsilon 1 --mechanism laplace --json",
    "estimate histogram {csv} --column age --lower 0 --upper 120 --bins 4 --epsilon 1 --seed 3",
    "estimate quantiles {csv} --column age --lower 0 --upper 120 --epsilon 1 --bits 1",
    "data list --json",
    "export {folder} --out {folder}/m.safetensors",
    "report {folder} --out {folder}/page.html",
    "watch {folder} --once",
    "completion bash",
    "--version",
)
_SLOW = ("demo", "run", "explore", "experiment", "attack", "audit", "deploy", "benchmark", "fetch",
         "doctor", "plan", "design", "calibrate", "watch")  # fmt: skip
_MOST_DIGITS = 4


def _arguments(folder: Path) -> Case:
    ledger, csv = folder / "ledger.sqlite", folder / "people.csv"
    with Ledger(ledger, create=True) as book:
        release = Release(unit=Unit.CLIENT, run="run", client="ada", round=1, uplink=0)
        book.charge(release, 0, PureDp(epsilon=1.0, adjacency=Adjacency.ZERO_OUT))
    csv.write_text("age,name\n" + "".join(f"{20 + n % 50},p{n}\n" for n in range(200)))
    names = {"ledger": ledger, "csv": csv, "folder": folder / "none"}
    lines = [[part.format(**names) for part in line.split(" ")] for line in _LINES]
    os.environ["COLUMNS"] = "100"

    def case(random: Random) -> None:
        arguments = list(random.choice(lines))
        for _ in range(random.choice((1, 1, 2, 3))):
            _change(random, arguments)
        if "watch" in arguments and "--once" not in arguments:
            arguments.append("--once")
        if any(word in arguments for word in _SLOW if word != "watch") or _is_long(arguments):
            arguments = ["ledger", *arguments[-1:]]
        # No operating system hands over a zero byte.
        _called([one.replace("\x00", "") for one in arguments], folder)

    return case


def _change(random: Random, arguments: list[str]) -> None:
    at = random.randrange(len(arguments))
    what = random.randrange(6)
    if what == 0:
        arguments[at] = random.choice(ODD_TEXTS)
    elif what == 1:
        arguments[at] = repr(random.choice(ODD_NUMBERS))
    elif what == 2:
        arguments[at] = text_mutated(random, arguments[at])
    elif what == 3 and len(arguments) > 1:
        del arguments[at]
    elif what == 4:
        arguments.insert(at, random.choice(("--json", "--out", "--help", "--client", "--", "-x")))
    else:
        arguments.append(random.choice(arguments))


def _is_long(arguments: list[str]) -> bool:
    """Return whether the arguments ask for a correct but very long computation."""
    digits = [sum(one.isdigit() for one in text) for text in arguments if "/" not in text]
    return max(digits, default=0) > _MOST_DIGITS


def _called(arguments: list[str], folder: Path) -> None:
    """Call the command as `main` does; a clean exit with 2 counts as refused."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, Path.cwd()
    sys.argv = ["sottovoce", *arguments]
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            app(arguments, standalone_mode=False)
    except Exception as error:
        message = mistakes.explain(error)
        if message is None:
            raise
        if type(error).__name__ != "NoArgsIsHelpError":
            check(message.isprintable(), "an error has control characters in it")
        raise SottovoceError(message) from None
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    for text in (out.getvalue(), err.getvalue()):
        check(all(line.isprintable() for line in text.split("\n")), "output commands the terminal")


ENTRANCES = (Entrance(name="command-line", share=3_000, prepare=_arguments),)
