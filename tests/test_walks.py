"""`make walks`: what is counted, on a package that was made for it."""

from pathlib import Path

import walks

PACKAGE = {
    "__init__.py": "",
    "version.py": '"""A docstring."""\n\nVERSION = 1  # a comment\n',
    "protocol/__init__.py": "",
    "protocol/channels/__init__.py": "",
    "protocol/channels/channel.py": """
class Direct:
    \"\"\"Of two
    lines.\"\"\"

    def describe(self):
        return isinstance(self, Direct)
""",
    "protocol/faces.py": "from sottovoce.protocol.channels.channel import Direct\n",
    "privacy/events.py": "class Direct: ...\n",
    "privacy/pure.py": """
from sottovoce.privacy.events import Direct
isinstance(1, Direct)
""",
    "runs/outcome.py": """
from sottovoce.protocol.faces import Direct
match object():
    case Direct():
        pass
isinstance(1, int | Direct)
spec.channel.kind == "direct"
spec.model.kind == "linear"
mechanism.privacy(adjacency)
mechanism.encode(values, keystream)
"text".encode("utf-8")
""",
    "mechanisms/one.py": "mechanism.privacy(adjacency)\n",
}


def test_packages_lines_type_tests_and_calls_are_counted(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        file = tmp_path / "src/sottovoce" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("from sottovoce.runs.outcome import header\n")
    (tmp_path / "README.md").write_text("import sottovoce\nimport sottovoce.runs\nfrom sottovoce\n")
    counts = walks.static_counts(tmp_path)
    assert counts["packages"] == ["mechanisms", "privacy", "protocol", "runs"]
    assert counts["loose_modules"] == ["version.py"]
    assert counts["files"] == len(PACKAGE)
    assert counts["code_lines"] == 1 + 3 + 1 + 1 + 2 + 10 + 1
    assert counts["type_tests_by_file"] == {"runs/outcome.py": [4, 6, 7]}
    assert counts["cost_calls"] == ["runs/outcome.py:9"]
    assert counts["encode_calls"] == ["runs/outcome.py:10"]
    assert counts["documented_imports"] == {
        "sottovoce.runs.outcome": 3,
        "sottovoce.runs": 2,
        "sottovoce": 1,
    }
    assert "type tests                      3 in 1 files" in walks.report(counts)


def test_core_privacy_and_ledger_count_once_each() -> None:
    walk = walks._walk({"core/files.py", "core/display.py", "loose.py", "ledger/a.py", "runs/a.py"})
    assert walk["counted"] == 3


def test_the_classes_that_are_told_apart_are_found_in_this_package() -> None:
    sources = walks.ROOT / "src/sottovoce"
    patterns = ["protocol/channels/*.py", "federated/algorithms/*.py", "federated/cohorts.py"]
    modules = [one for pattern in patterns for one in walks.modules_of(sources, pattern)]
    found = walks.concrete_classes(modules)
    assert {"Direct", "SecureSum", "Shuffler", "SecretOrder", "Central"} <= set(found)
    assert {"FedAvg", "Scaffold", "Everyone", "Poisson", "FixedSize", "Epochs"} <= set(found)
