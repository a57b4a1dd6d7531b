"""The example app: few lines make it private, and without them nothing of ours is left."""

import tomllib
from pathlib import Path

from flwr.common.config import flatten_dict

from sottovoce.deployment.settings import settings_of

APP = Path(__file__).parents[2] / "examples" / "flower" / "own_app"
FILES = ("pyproject.toml", "own_app/client_app.py", "own_app/server_app.py", "own_app/task.py")
MARK = "# sottovoce"


def test_fewer_than_ten_lines_make_it_private() -> None:
    marked = 0
    for name in FILES:
        lines = (APP / name).read_text().splitlines()
        marked += sum(MARK in line for line in lines)
        plain = "\n".join(line for line in lines if MARK not in line)
        if name.endswith(".py"):
            compile(plain, name, "exec")
            assert "sottovoce" not in plain
        else:
            table = tomllib.loads(plain)
            assert "sottovoce" not in table["tool"]["flwr"]["app"]["config"]
            assert not any("sottovoce" in one for one in table["project"]["dependencies"])
    assert marked == 9


def test_flower_joins_the_table_to_the_keys_that_are_read() -> None:
    table = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = settings_of(flatten_dict(table))
    assert (settings.epsilon, settings.delta, settings.clip_norm) == (20.0, 1e-5, 1.0)
    assert settings.parameters == {"levels": 2}
