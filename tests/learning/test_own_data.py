"""The user's own data: arrays, tables and folders."""

import dataclasses
import importlib.util
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.core.errors import DataError, ParameterError, UnknownNameError
from sottovoce.learning import datasets
from sottovoce.learning.datasets import CsvOptions, Dataset

TABLE = "age,height,ward,ill\n" + "".join(
    f"{20 + row},{150 + row}, {'north' if row % 2 else 'south'},{'yes' if row % 3 else 'no'}\n"
    for row in range(20)
)
# No version of it installs beside what development needs, so a stand-in is tested as well.
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the library datasets is not installed"
)


def load(name: str, csv: CsvOptions | None = None) -> Dataset:
    return datasets.load(name, np.random.default_rng(0), csv=csv)


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_own_arrays_with_a_test_part(tmp_path: Path) -> None:
    name = npz(
        tmp_path / "a.npz",
        x_train=np.linspace(-3, 3, 30).reshape(10, 3),
        y_train=np.arange(10) % 3,
        x_test=np.zeros((4, 3)),
        y_test=np.array([0, 1, 2, 3]),
        owner_train=np.array(["b", "a"] * 5),
    )
    data = load(name)
    assert data.num_classes == 4
    assert data.train_features.dtype == np.float32
    assert data.train_features.max() == 3.0  # floats are left as they are
    assert data.train_owners is not None
    assert data.train_owners.tolist() == [1, 0] * 5
    assert data.input_shape == (3,)


def test_own_arrays_without_a_test_part_are_split_with_their_owners(tmp_path: Path) -> None:
    x = np.arange(20, dtype=np.uint8)[:, None]
    data = load(npz(tmp_path / "a.npz", x=x, y=np.arange(20) / 10.0, owner=np.arange(20)))
    assert data.num_classes is None
    assert data.num_outputs == 1
    assert len(data.test_labels) == 4
    assert data.train_owners is not None
    rows = np.round((data.train_features[:, 0] + 0.5) * 255).astype(int)
    np.testing.assert_array_equal(rows, data.train_owners)
    np.testing.assert_allclose(data.train_labels[:, 0], rows / 10.0, rtol=1e-6)


def test_own_attributes_come_along(tmp_path: Path) -> None:
    x = np.arange(20.0)[:, None]
    split = npz(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, attribute_old=np.arange(20))
    data = load(split)
    np.testing.assert_array_equal(data.train_features[:, 0], data.train_attributes["old"])
    np.testing.assert_array_equal(data.test_features[:, 0], data.test_attributes["old"])
    parts = {
        "x_train": x,
        "y_train": np.arange(20) % 2,
        "x_test": x[:5],
        "y_test": np.zeros(5, int),
    }
    given = {"attribute_old_train": np.arange(20), "attribute_old_test": np.arange(5)}
    data = load(npz(tmp_path / "b.npz", **parts, **given))
    assert data.test_attributes["old"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="different attributes"):
        load(npz(tmp_path / "c.npz", **parts, attribute_old_train=np.arange(20)))
    with pytest.raises(DataError, match=r"'attribute_old' has shape \(3,\), not one value"):
        load(npz(tmp_path / "d.npz", x=x, y=np.arange(20) % 2, attribute_old=np.arange(3)))


def test_own_images_are_scaled(tmp_path: Path) -> None:
    x = np.full((10, 5, 6, 3), 255, np.uint8)
    data = load(npz(tmp_path / "a.npz", x=x, y=np.arange(10) % 2))
    assert data.input_shape == (3, 5, 6)
    assert np.all(data.train_features == 0.5)


def test_own_arrays_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path, y = tmp_path / "a.npz", np.arange(10) % 2
    for arrays, message in (
        ({"x": np.full((10, 2), np.nan), "y": y}, "not finite"),
        ({"x": np.full((10, 2), 1e300), "y": y}, "not finite float32"),
        ({"x": np.zeros(10), "y": y}, "not features"),
        ({"x": np.zeros((10, 2)), "y": y - 1}, "labels -1 to 0, and labels must start at 0"),
        ({"x": np.zeros((10, 2)), "y": y.astype(str)}, "neither classes nor numbers"),
        ({"x": np.zeros((9, 2)), "y": y}, "numbers of rows"),
        ({"x": np.zeros((0, 2)), "y": y[:0]}, "there are no rows in 'x', 'y'; write it again$"),
        ({"x": np.zeros((10, 2)), "y": y[:, None][:, :0]}, "labels have shape"),
        ({"x": np.zeros((10, 2)), "y": y, "owner": np.zeros((10, 2))}, "not one for each row"),
        ({"x": np.zeros((10, 2))}, "array 'y' is missing"),
        ({"x": np.zeros((10, 2)), "y": np.int64(1)}, "'y' is a single value"),
        ({"x_train": np.zeros((10, 2)), "y_train": y}, "array 'x_test' is missing"),
        (
            {
                "x_train": np.zeros((10, 2)),
                "y_train": y,
                "x_test": np.zeros((10, 2)),
                "y_test": y / 2,
            },
            "have different types or shapes",
        ),
        ({"x": np.zeros((3, 2)), "y": np.arange(3) % 2}, "3 rows are too few to hold out"),
    ):
        with (
            np.errstate(over="ignore"),
            pytest.raises(DataError, match=message),
        ):
            load(npz(path, **arrays))
    with pytest.raises(DataError, match="there is no file"):
        load(f"npz:{tmp_path / 'b.npz'}")


def test_a_file_of_the_users_own_that_is_no_archive_of_arrays_is_explained(tmp_path: Path) -> None:
    """numpy's advice, to load pickles unsafely, is none of ours; nor can the file be fetched."""
    path, y = tmp_path / "a.npz", np.arange(10) % 2
    noise = np.random.default_rng(0).integers(128, 256, 400, dtype=np.uint8).tobytes()
    np.savez(path, x=np.array([{}] * 10, dtype=object), y=y)
    objects = path.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", noise)
        archive.writestr("y.npy", noise)
    not_arrays = path.read_bytes()
    header = io.BytesIO()
    np.save(header, y)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue().replace(b"}", b" "))
        archive.writestr("y.npy", header.getvalue())
    for content, message in (
        (noise, "it contains Python objects or is damaged"),
        (objects, "it contains Python objects or is damaged"),
        (not_arrays, "'x' is not an array"),
        (path.read_bytes(), "cannot be read as data"),
        (b"", "cannot be read as data"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            load(f"npz:{path}")
        assert "pickle" not in str(caught.value)
        assert str(caught.value).endswith("; write it again")


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "t.csv").write_text(TABLE)
    return f"csv:{tmp_path / 't.csv'}"


def test_a_table_with_public_bounds_owners_and_classes(table: str) -> None:
    options = CsvOptions(
        label_columns=("ill",),
        owner_column="ward",
        classes=("yes", "no", "unknown"),
        bounds={"age": (0.0, 100.0)},
    )
    data = load(table, options)
    assert data.num_classes == 3
    assert len(data.test_labels) == 4
    row = np.round((data.train_features[:, 0] + 0.5) * 100 - 20)
    np.testing.assert_allclose(data.train_features[:, 1], 150 + row)  # no bounds: as it is
    np.testing.assert_array_equal(data.train_labels, np.where(row % 3, 0, 1))
    assert data.train_owners is not None
    np.testing.assert_array_equal(data.train_owners, np.where(row % 2, 0, 1))
    assert data.note == ""


def test_an_owner_column_that_is_the_last_is_not_the_label(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("size,kind,ward\n" + "".join(f"{i},{i % 3},w{i % 2}\n" for i in range(20)))
    data = load(f"csv:{path}", CsvOptions(owner_column="ward"))
    assert (data.num_classes, data.input_shape) == (3, (1,))
    path.write_text(path.read_text().replace("w1", "", 1))
    with pytest.raises(DataError, match="data row 2, column 'ward': the owner of the row"):
        load(f"csv:{path}", CsvOptions(owner_column="ward"))


def test_numbers_to_predict_and_a_bound_for_all(table: str) -> None:
    options = CsvOptions(
        label_columns=("height", "age"), label="number", owner_column="ward", bounds={"*": (0, 1)}
    )
    with pytest.raises(DataError, match=r"column 'ill': 'no' is not a finite number"):
        load(table, options)
    Path(table[4:]).write_text(TABLE.replace("yes", "1").replace("no\n", "0\n"))
    data = load(table, options)
    assert data.num_outputs == 2
    assert set(data.train_features[:, 0].tolist()) == {-0.5, 0.5}


ABROAD = "name;size;town;ill\n" + "".join(
    f"P{row};{row},5;{('Ulm', 'Bonn', 'Kiel')[row % 3]};{'yes' if row % 2 else 'no'}\n"
    for row in range(20)
)


def test_a_table_with_decimal_commas_words_and_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(ABROAD)
    options = CsvOptions(
        decimal=",",
        ignore_columns=("name",),
        categories={"town": ("Ulm", "Bonn")},
        bounds={"*": (0.0, 20.0)},
    )
    data = load(f"csv:{tmp_path / 't.csv'}", options)
    size = (data.train_features[:, 0] + 0.5) * 20
    row = np.round(size - 0.5).astype(int)
    np.testing.assert_allclose(size, row + 0.5, rtol=1e-6)
    np.testing.assert_array_equal(data.train_features[:, 1], row % 3 == 0)
    np.testing.assert_array_equal(data.train_features[:, 2], row % 3 == 1)
    np.testing.assert_array_equal(data.train_labels, row % 2)
    assert data.input_shape == (3,)


def test_rows_without_a_cell_are_left_out_if_that_is_asked_for(tmp_path: Path) -> None:
    text = ABROAD.replace("3,5;", "NA;", 1).replace("P5;5,5;Kiel;yes", "P5;5,5;Kiel;")
    text = text.replace("P7;7,5;Bonn", "P7;7,5;").replace("P9;", ";")  # a name is not used
    (tmp_path / "t.csv").write_text(text)
    words = {"town": ("Ulm", "Bonn")}
    options = CsvOptions(decimal=",", ignore_columns=("name",), categories=words)
    with pytest.raises(DataError, match=r"row 4, column 'size': 'NA' .* data\.csv\.missing"):
        load(f"csv:{tmp_path / 't.csv'}", options)
    data = load(f"csv:{tmp_path / 't.csv'}", dataclasses.replace(options, missing="skip"))
    sizes = np.concatenate([data.train_features[:, 0], data.test_features[:, 0]])
    assert sorted(sizes) == [row + 0.5 for row in range(20) if row not in (3, 5, 7)]
    later = text.replace("P12;12,5", "P12;tall")  # rows are called by their place in the file
    (tmp_path / "t.csv").write_text(later)
    with pytest.raises(DataError, match=r"data row 13, column 'size': 'tall' .*categories"):
        load(f"csv:{tmp_path / 't.csv'}", dataclasses.replace(options, missing="skip"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CsvOptions(), r"'P0' is not a finite number; .*ignore_columns.*categories"),
        (CsvOptions(ignore_columns=("name",)), r"'0,5' .*data\.csv\.decimal = ','"),
        (CsvOptions(ignore_columns=("nome",)), "did you mean 'name'"),
        (CsvOptions(decimal=",", categories={"tow": ("Ulm",)}), "did you mean 'town'"),
    ],
)
def test_a_table_that_needs_options_says_which(
    options: CsvOptions, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(ABROAD)
    with pytest.raises((DataError, UnknownNameError), match=message):
        load(f"csv:{tmp_path / 't.csv'}", options)


@pytest.mark.parametrize(
    "given",
    [
        {"decimal": ";"},
        {"categories": {"town": ()}},
        {"categories": {"town": ("Ulm", "Ulm")}},
        {"categories": {"town": ("Ulm",)}, "bounds": {"town": (0.0, 1.0)}},
    ],
)
def test_options_that_contradict_themselves_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        CsvOptions(**given)


def test_without_a_header_columns_have_numbers_and_the_last_is_the_label(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{row},{row % 11}\n" for row in range(22)))
    data = load(f"csv:{path}", CsvOptions(header=False))
    assert data.num_classes == 11  # in the order of numbers: 10 comes after 9
    np.testing.assert_array_equal(data.train_features[:, 0] % 11, data.train_labels)
    assert "read from the data" in data.note


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", CsvOptions(), "no rows of data"),
        ("a,b\n", CsvOptions(), "no rows of data"),
        ("a,b\n1,2\n1\n", CsvOptions(), "data row 2 has 1 cells, expected 2"),
        ("a,a\n1,2\n", CsvOptions(), "two columns with the same name"),
        ("a,b\nnan,0\n1,1\n", CsvOptions(), "row 1, column 'a': 'nan' is not a finite"),
        ("a,b\n1,0\n5,1\n", CsvOptions(bounds={"a": (0, 4)}), "5 is outside its bounds"),
        ("a,b\n1,0\n1,2\n", CsvOptions(classes=("0", "1")), "class '2' is not among"),
        ("a,b\n1,0\n1,0\n", CsvOptions(), "only one class"),
        ("b\n1\n0\n", CsvOptions(), "no columns of features"),
        ("a,b\n1,0\n2, \n3,1\n", CsvOptions(), "data row 2, column 'b': the label is empty"),
        ("a,b\n1,\n", CsvOptions(classes=("0", "1")), "data row 1, column 'b': the label is empty"),
        ("a,b\n1,\n", CsvOptions(label="number"), "row 1, column 'b': '' is not a finite"),
        (
            "a,b\n1,0\n2,1.5\n3,2\n3,2\n",
            CsvOptions(),
            r"column 'b' has 3 distinct values, such as 1\.5, .* data\.csv\.label = 'number'",
        ),
        ("1.5,0\n2,1\n3,0\n", CsvOptions(), r"only numbers.*data\.csv\.header = false"),
        ("a,b\n1,0\n1,1\n", CsvOptions(), "too few to hold out a fraction of 0.2"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(
    text: str, options: CsvOptions, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        load(f"csv:{tmp_path / 't.csv'}", options)


def test_fractions_are_classes_where_a_public_list_says_so_and_whole_floats_always(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "".join(f"{row},{0.5 * (row % 3)}\n" for row in range(12)))
    data = load(f"csv:{path}", CsvOptions(classes=("0.0", "0.5", "1.0")))
    np.testing.assert_array_equal(data.train_features[:, 0] % 3, data.train_labels)
    path.write_text("a,b\n" + "".join(f"{row},{float(row % 3)}\n" for row in range(12)))
    assert load(f"csv:{path}").num_classes == 3


def test_unknown_columns_are_answered_with_the_nearest(table: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ward'"):
        load(table, CsvOptions(owner_column="wards", label_columns=("ill",)))
    with pytest.raises(UnknownNameError, match="did you mean 'age'"):
        load(table, CsvOptions(owner_column="ward", bounds={"ages": (0, 100)}))
    Path(table[4:]).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not csv in UTF-8"):
        load(table)


def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a saved Hugging Face dataset"):
        load(f"hf:{tmp_path}")
    with pytest.raises(DataError, match="there is no folder"):
        load(f"hf:{tmp_path / 'nowhere'}")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("datasets", "PIL.Image"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "train.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="pip install datasets"):
        load(f"hf:{tmp_path}")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match="pip install pillow"):
        load(f"hf:{tmp_path}")


def test_images_in_class_folders(tmp_path: Path) -> None:
    from PIL import Image  # type: ignore[import-not-found, unused-ignore]

    for split, count in (("train", 3), ("test", 1)):
        for value, name in ((0, "cat"), (255, "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                path = tmp_path / split / name / f"{number}.png"
                Image.fromarray(np.full((4, 5), value, np.uint8)).save(path)
    data = load(f"hf:{tmp_path}")
    assert data.input_shape == (1, 4, 5)
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train_features[:, 0, 0, 0].tolist() == [-0.5] * 3 + [0.5] * 3
    assert len(data.test_labels) == 2
    Image.fromarray(np.zeros((9, 5), np.uint8)).save(tmp_path / "train" / "cat" / "9.png")
    with pytest.raises(DataError, match="several sizes"):
        load(f"hf:{tmp_path}")
    (tmp_path / "train" / "cat" / "9.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"9\.png cannot be read as an image"):
        load(f"hf:{tmp_path}")


class StandIn(dict[str, list[Any]]):
    """As much of a split of the library as is used: columns by name."""

    @property
    def column_names(self) -> list[str]:
        return list(self)


class StandInLibrary:
    """The two functions of the library that are called, on splits made beforehand."""

    def __init__(self, splits: dict[str, StandIn]) -> None:
        self.splits = splits
        self.asked: list[Any] = []

    def load_from_disk(self, folder: str) -> dict[str, StandIn]:
        self.asked.append(folder)
        return self.splits

    def load_dataset(
        self, kind: str, data_files: dict[str, list[str]], cache_dir: str
    ) -> dict[str, StandIn]:
        self.asked.append((kind, data_files))
        if "broken" in data_files["train"][0]:
            raise RuntimeError("no such bytes")
        return {split: self.splits[split] for split in data_files}


def test_what_the_library_reads_is_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = StandIn(a=[1.0, 2.0, 3.0], b=[[0, 1], [2, 3], [4, 5]], label=["dog", "cat", "dog"])
    test = StandIn(a=[4.0], b=[[6, 7]], label=["cat"])
    library = StandInLibrary({"train": train, "test": test})
    monkeypatch.setitem(sys.modules, "datasets", library)
    (tmp_path / "train-00000-of-00001.parquet").touch()
    (tmp_path / "test-00000-of-00001.parquet").touch()
    data = load(f"hf:{tmp_path}")
    assert data.train_features.tolist() == [[1, 0, 1], [2, 2, 3], [3, 4, 5]]
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([1, 0, 1], [0])
    kind, files = library.asked[0]
    assert kind == "parquet"
    assert {split: len(paths) for split, paths in files.items()} == {"train": 1, "test": 1}
    (tmp_path / "dataset_dict.json").touch()
    np.testing.assert_array_equal(load(f"hf:{tmp_path}").train_features, data.train_features)
    assert library.asked[1] == str(tmp_path)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": [1.0, 2.0]}, "no column called label"),
        ({"a": [1.0, 2.0], "label": [0.5, 1.5]}, "does not contain classes"),
        ({"a": ["x", "y"], "label": [0, 1]}, "column 'a' .* is not numeric"),
        ({"a": [1.0, float("nan")], "label": [0, 1]}, "not finite"),
        ({"label": [0, 1]}, "no features"),
    ],
)
def test_wrong_columns_of_the_library_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: dict[str, list[Any]], reason: str
) -> None:
    library = StandInLibrary({"train": StandIn(columns)})
    monkeypatch.setitem(sys.modules, "datasets", library)
    (tmp_path / "train.parquet").touch()
    with pytest.raises(DataError, match=reason):
        load(f"hf:{tmp_path}")


def test_what_the_library_cannot_read_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", StandInLibrary({}))
    (tmp_path / "broken.parquet").touch()
    with pytest.raises(DataError, match="cannot be read as a dataset: no such bytes"):
        load(f"hf:{tmp_path}")


@needs_library
@pytest.mark.filterwarnings("ignore")
def test_saved_datasets_and_parquet_files_give_the_same(tmp_path: Path) -> None:
    import datasets as library  # type: ignore[import-not-found, unused-ignore]

    rows = {"a": [float(row) for row in range(10)], "label": [row % 2 for row in range(10)]}
    made = library.Dataset.from_dict(rows)
    made.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "parquet" / "data").mkdir(parents=True)
    made.to_parquet(str(tmp_path / "parquet" / "data" / "train-00000-of-00001.parquet"))
    saved, parquet = load(f"hf:{tmp_path / 'saved'}"), load(f"hf:{tmp_path / 'parquet'}")
    np.testing.assert_array_equal(saved.train_features, parquet.train_features)
    np.testing.assert_array_equal(saved.train_features[:, 0] % 2, saved.train_labels)
    assert len(saved.test_labels) == 2


def test_classes_that_are_written_as_vectors_are_refused(tmp_path: Path) -> None:
    """As numbers to predict they would be scored 1 - mean absolute error, high for any model."""
    x, one_hot = np.zeros((6, 2), np.float32), np.eye(3, dtype=np.float32)[[0, 1, 2] * 2]
    with pytest.raises(DataError, match=r"give the numbers of the classes, y\.argmax\(axis=1\)"):
        load(npz(tmp_path / "a.npz", x=x, y=one_hot))
    assert load(npz(tmp_path / "b.npz", x=x, y=one_hot / 2)).num_classes is None


def test_a_table_with_semicolons_is_read(tmp_path: Path) -> None:
    rows = "".join(f"{i};{-i};{i % 2}\n" for i in range(20))
    (tmp_path / "own.csv").write_text("a;b;label\n" + rows)
    data = load(f"csv:{tmp_path / 'own.csv'}")
    assert data.train_features.shape == (16, 2)
    assert data.num_classes == 2
