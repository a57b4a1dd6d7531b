"""Columns of csv files: found, read in batches, and refused with the row and the remedy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.core import table_files
from sottovoce.core.errors import DataError, ParameterError, UnknownNameError
from sottovoce.core.table_files import CsvColumns
from sottovoce.learning.datasets.tables import read_table


def read(path: Path, column: str | None = "age", **options: Any) -> list[float]:
    batches = CsvColumns(path=path, columns=(column,), **options).numbers()
    return [float(value) for batch in batches for value in batch]


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "people.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        "name,age\na,1\nb,2.5\n",
        "name,age\r\na,1\r\nb,2.5",
        "name;age\na;1\nb;2.5\n",
        "name\tage\na\t 1\nb\t2.5 \n\n",
        '"name, first",age\n"x, y",1\n"z",2.5\n',
        "\ufeffage,name\n1,a\n2.5,b\n",
        "age\n1\n2.5\n\n\n",
    ],
)
def test_usual_files_are_read(tmp_path: Path, text: str) -> None:
    assert read(written(tmp_path, text)) == [1.0, 2.5]


def test_columns_by_number_and_the_only_one(tmp_path: Path) -> None:
    path = written(tmp_path, "1,2\n3,4\n")
    assert read(path, "1", header=False) == [2.0, 4.0]
    assert read(written(tmp_path, "age\n7\n"), None) == [7.0]


def test_several_columns_are_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "lat,x,lon\n1,q,2\n3,q,\n5,q,6\n")
    columns = CsvColumns(path=path, columns=("lat", "lon"), missing="skip")
    assert np.concatenate(list(columns.numbers())).tolist() == [[1.0, 2.0], [5.0, 6.0]]


def test_missing_cells_are_refused_or_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, "name,age\na,1\nb,\nc,NA\nd,nan\ne,2\n")
    with pytest.raises(DataError, match=r"data row 2, column 'age': the cell is empty.*--missing"):
        read(path)
    assert read(path, missing="skip") == [1.0, 2.0]
    single = written(tmp_path, "age\n1\n\n2\n\n")
    with pytest.raises(DataError, match="data row 2"):
        read(single)
    assert read(single, missing="skip") == [1.0, 2.0]


def test_a_decimal_comma_is_read_where_it_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "name;age\na;1,5\nb;2\n")
    with pytest.raises(DataError, match="give --decimal ','"):
        read(path)
    assert read(path, decimal=",") == [1.5, 2.0]
    assert read(written(tmp_path, "age\n1,5\n2\n"), decimal=",") == [1.5, 2.0]  # one column
    with pytest.raises(DataError, match=r"give --decimal '\.'"):
        read(written(tmp_path, "age\n1.5\n"), decimal=",")
    for wrong in ({"decimal": ";"}, {"decimal": ",", "delimiter": ","}):
        with pytest.raises(ParameterError, match="decimal sign"):
            read(path, **wrong)


def test_words_that_stand_for_nothing_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "name,age\na,1\nunknown,99\nc,2\n")
    assert read(path) == [1.0, 99.0, 2.0]
    assert read(path, missing="skip", missing_words=("99",)) == [1.0, 2.0]
    with pytest.raises(DataError, match="data row 2, column 'age': '99' means a missing value"):
        read(path, missing_words=("99",))
    names = CsvColumns(path=path, columns=("name",), missing="skip", missing_words=("unknown",))
    assert list(names.words()) == [["a", "c"]]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("name,age\n", "no rows of data.*below the header"),
        ("name,age\na,x\n", "data row 1, column 'age': 'x' is not a number"),
        ("name,age\na,1\nb,inf\n", "data row 2.*'inf' is not finite"),
        ("name,age\na,1_000\n", "'1_000' is not a number"),
        ("name;age\na;1,5\n", "decimal sign"),
        ("name,age\na,1\nb\n", "data row 2: expected 2 cells, got 1"),
        ("name,years\na,1\n", "no column 'age'.*choose one of: name, years"),
        ("age,age\n1,2\n", "has 2 columns 'age'"),
        ("1,2\n3,4\n", "--no-header"),
        ('name,age\na,"1\n', "data row 1|not csv"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        read(written(tmp_path, text))


def test_another_encoding_is_named_and_can_be_given(tmp_path: Path) -> None:
    path = written(tmp_path, "name,age\nJosé,1\nZoë,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"not text in utf-8: byte 0xe9.*--encoding"):
        read(path)
    assert read(path, encoding="latin-1") == [1.0, 2.0]
    with pytest.raises(ParameterError, match="no encoding 'latin-x'"):
        read(path, encoding="latin-x")
    binary = written(tmp_path, bytes(range(256)) * 10)
    with pytest.raises(DataError):
        read(binary)


def test_folders_absent_files_and_odd_options(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(DataError, match="cannot read"):
        read(tmp_path / "absent.csv")
    path = written(tmp_path, "a,b\n1,2\n")
    with pytest.raises(ParameterError, match="choose one with --column: a, b"):
        read(path, None)
    with pytest.raises(UnknownNameError, match="missing"):
        read(path, "a", missing="guess")
    with pytest.raises(ParameterError, match="one character"):
        read(path, "a", delimiter=",,")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"PAR1\x15\x00\x15", "a Parquet file"),
        (b"PAR1,no zero byte\n1,2\nPAR1", "a Parquet file"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x1f\x8b\x08", "compressed by gzip"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"SQLite format 3\0", "an SQLite database"),
    ],
)
def test_binary_formats_are_refused_by_name(tmp_path: Path, head: bytes, what: str) -> None:
    path = written(tmp_path, head)
    for reading in (
        lambda: read(path, encoding="latin-1"),
        lambda: read_table(path, header=True),
    ):
        with pytest.raises(DataError, match=f"is {what}.*convert it to CSV"):
            reading()


def test_a_file_is_parquet_by_its_name_too_but_not_by_a_column_called_so(tmp_path: Path) -> None:
    assert read(written(tmp_path, "PAR1,age\n1,2.5\n")) == [2.5]
    with pytest.raises(DataError, match="is a Parquet file"):
        read(written(tmp_path, "age\n1\n").rename(tmp_path / "people.parquet"))


def test_batches_bound_the_memory_and_tell_how_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "BATCH_ROWS", 10)
    path = written(tmp_path, "age\n" + "".join(f"{i}\n" for i in range(95)))
    columns = CsvColumns(path=path, columns=("age",))
    told: list[tuple[int, int]] = []
    batches = list(columns.numbers(lambda done, total: told.append((done, total))))
    assert [len(batch) for batch in batches] == [10] * 9 + [5]
    assert np.concatenate(batches).tolist() == [float(i) for i in range(95)]
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert columns.count_lines() == 95


def test_words(tmp_path: Path) -> None:
    path = written(tmp_path, "town,x\nBonn ,1\n,2\nUlm,3\n")
    columns = CsvColumns(path=path, columns=("town",), missing="skip")
    assert [word for batch in columns.words() for word in batch] == ["Bonn", "Ulm"]
    with pytest.raises(DataError, match="data row 2"):
        list(CsvColumns(path=path, columns=("town",)).words())
