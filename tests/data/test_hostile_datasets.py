"""Files of transitions that claim what they do not hold: refused in one line, before memory is taken, and never followed out of the file."""

import io
import json
import zipfile

import numpy as np
import pytest

from fuzzing.datasets import good_columns, hdf5_mutants, npz_mutants, write_hdf5, write_npz
from rl_training.cli import main
from rl_training.data import TransitionDataset
from rl_training.data.dataset_files import read_hdf5, read_npz
from rl_training.data.errors import DatasetError

h5py = pytest.importorskip("h5py")
READERS = {"npz": read_npz, "hdf5": read_hdf5}


def problem(path):
    """What reading a file says in one line; None if it is a dataset."""
    try:
        assert isinstance(READERS[path.suffix[1:]](path), TransitionDataset)
    except DatasetError as error:
        text = str(error)
        assert str(path) in text and "\n" not in text, text
        return text
    return None


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.filterwarnings("ignore")
def test_mutated_files_are_datasets_or_refused_in_one_line(kind, tmp_path):
    (tmp_path / "outside.hdf5").write_bytes(write_hdf5(good_columns()))
    files = npz_mutants(3, 150) if kind == "npz" else hdf5_mutants(3, 150, outside=tmp_path / "outside.hdf5")
    path, refused = tmp_path / f"mutant.{kind}", 0
    for words, data in files:
        path.write_bytes(data)
        try:
            refused += problem(path) is not None
        except Exception as error:
            raise AssertionError(words) from error
    assert refused > 75


@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62), (-1,), (10**30,), (10**6, 10**6)])
def test_an_npz_header_accounts_for_its_bytes(shape, tmp_path):
    text = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode() + b"\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    path = tmp_path / "a.npz"
    path.write_bytes(write_npz(good_columns(), {"obs": header}))
    assert "obs has 480 bytes, which are not float32 of shape" in problem(path)


@pytest.mark.parametrize(("shape", "chunks"), [((2**40,), None), ((2**20, 2**20), (64, 64)), ((2**62,), (1024,))])
def test_an_hdf5_file_takes_no_more_memory_than_its_size_allows(shape, chunks, tmp_path, capsys):
    path = tmp_path / "a.hdf5"
    columns = {name: column for name, column in good_columns().items() if name != "rewards"}
    path.write_bytes(write_hdf5(columns, lambda file: file.create_dataset("rewards", shape, np.int8, chunks=chunks)))
    assert main(["dataset", "info", str(path)]) == 2
    assert "bytes in memory, and at most 67,108,864 may be taken" in capsys.readouterr().err


def test_a_packed_file_of_many_zeros_is_read(tmp_path):
    rows = {name: np.zeros((50_000, *column.shape[1:]), column.dtype) for name, column in good_columns().items()}
    path = tmp_path / "a.npz"
    path.write_bytes(write_npz(rows, compress=True))
    assert len(read_npz(path)) == 50_000 and path.stat().st_size < 20_000


LINKS = {
    "external": (lambda file, outside: file.__setitem__("rewards", h5py.ExternalLink(outside, "/rewards")), "is a link"),
    "soft": (lambda file, outside: file.__setitem__("rewards", h5py.SoftLink("/actions")), "is a link"),
    "through a folder": (
        lambda file, outside: (
            file.__setitem__("out", h5py.ExternalLink(outside, "/")),
            file.__setitem__("rewards", h5py.SoftLink("/out/rewards")),
        ),
        "is a link",
    ),
    "raw": (
        lambda file, outside: file.create_dataset("rewards", (40,), np.float32, external=[(outside, 0, 160)]),
        "has its data in other files",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LINKS)
def test_links_out_of_an_hdf5_file_are_not_followed(kind, tmp_path):
    outside, path = tmp_path / "outside.hdf5", tmp_path / "a.hdf5"
    outside.write_bytes(write_hdf5(good_columns()))
    add, message = LINKS[kind]
    columns = {name: column for name, column in good_columns().items() if name != "rewards"}
    path.write_bytes(write_hdf5(columns, lambda file: add(file, str(outside))))
    assert f"rewards {message}" in problem(path)


def test_a_virtual_dataset_is_not_read(tmp_path):
    outside, path = tmp_path / "outside.hdf5", tmp_path / "a.hdf5"
    outside.write_bytes(write_hdf5(good_columns()))
    layout = h5py.VirtualLayout((40,), np.float32)
    layout[...] = h5py.VirtualSource(str(outside), "rewards", (40,))
    columns = {name: column for name, column in good_columns().items() if name != "rewards"}
    path.write_bytes(write_hdf5(columns, lambda file: file.create_virtual_dataset("rewards", layout)))
    assert "rewards has its data in other files, which are not read" in problem(path)


def test_links_that_nothing_reads_do_no_harm(tmp_path):
    path = tmp_path / "a.hdf5"
    path.write_bytes(
        write_hdf5(
            good_columns(), lambda file: file.__setitem__("notes", h5py.ExternalLink("elsewhere.hdf5", "/notes"))
        )
    )
    assert problem(path) is None


@pytest.mark.parametrize("value", ["x", [1], True, float("nan")])
def test_reference_returns_are_finite_numbers(value, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(write_npz({**good_columns(), "meta": np.array(json.dumps({"random_return": value}))}))
    assert "random_return in its meta must be a finite number" in problem(path)


def test_objects_are_never_unpickled(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(write_npz({**good_columns(), "notes": np.array([{}], object)}))
    assert "notes holds pickled objects, which could run code" in problem(path)


def test_a_single_array_is_called_one(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert "a.npz holds a single array, not the columns of a dataset" in problem(tmp_path / "a.npz")


def test_text_beside_the_columns_is_left_out(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(write_npz({**good_columns(), "notes": np.array(["one", "two"])}))
    assert problem(path) is None


def test_an_archive_of_other_things_is_no_dataset(tmp_path):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("notes.txt", "hello")
    path = tmp_path / "a.npz"
    path.write_bytes(memory.getvalue())
    assert "lacks obs, actions, rewards" in problem(path)
