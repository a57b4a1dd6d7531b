"""Tables fit 100 columns, and long work reports its progress where there is no terminal."""

import time

import pytest

from sottovoce.cli import output


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_text_is_wrapped_at_spaces_and_no_word_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    output.print_table(["name", "text", "number"], [["a", words, "1.5"], ["b", "short", "2"]])
    shown = capsys.readouterr().out
    assert _width(shown) <= 100
    assert " ".join(word for word in shown.split() if word.startswith("word")) == words


def test_a_table_of_many_columns_is_printed_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["name", *(f"column{number}" for number in range(20))]
    row = ["first", *(f"{number}.123456" for number in range(20))]
    output.print_table(columns, [row])
    shown = capsys.readouterr().out
    assert _width(shown) <= 100
    assert shown.count("first") == 3
    assert [cell for cell in shown.split() if cell.endswith(".123456")] == row[1:]


def test_a_long_path_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/data/" + "x" * 150
    output.print_table(["run", "folder"], [["a", path]])
    shown = capsys.readouterr().out
    assert _width(shown) <= 100
    assert path in "".join(shown.replace("a  ", "").split())


def test_long_fields_are_wrapped_under_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_fields({"name": "x", "guarantee": "many words " * 30})
    shown = capsys.readouterr().out
    assert _width(shown) <= 100
    assert all(line.startswith("           ") for line in shown.splitlines()[2:])


def test_long_work_reports_lines_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_QUIET_SECONDS", 0.02)
    monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0.02)
    with output.report_progress() as bars:
        time.sleep(0.06)
        bars.update("training", 3, 10, "accuracy 0.5")
        time.sleep(0.06)
        bars.update("training", 10, 10, "done")
    found = capsys.readouterr()
    assert found.out == ""
    lines = found.err.splitlines()
    assert lines[0].startswith("preparing  (")
    assert any(line.startswith("training: 3 of 10  accuracy 0.5  (") for line in lines)
    assert lines[-1].startswith("training: 10 of 10  done  (")


def test_short_work_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with output.report_progress() as bars:
        bars.update("training", 10, 10, "done")
    assert capsys.readouterr().err == ""
