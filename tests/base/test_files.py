"""Reading regular files alone: no link is followed, no pipe waited for, no file of absurd size taken in."""

from __future__ import annotations

import os
import socket

import pytest

from rl_training.base.files import (
    UnusualFile,
    files_below,
    lock_folder,
    open_regular,
    read_json_object,
    read_regular,
    real_folder,
    regular_file,
    write_durably,
)


@pytest.fixture
def special(tmp_path, monkeypatch):
    """A folder with one path of every kind, and what messages call it."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    (tmp_path / "file").write_text("content")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "linked folder").symlink_to("folder")
    (tmp_path / "broken link").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    socket.socket(socket.AF_UNIX).bind("socket")
    names = {"link": "a symbolic link", "linked folder": "a symbolic link", "broken link": "a symbolic link"}
    return {**names, "pipe": "a pipe", "socket": "a socket", "folder": "a folder"}


def test_only_a_regular_file_is_a_file(special, tmp_path):
    assert regular_file(tmp_path / "file") and read_regular(tmp_path / "file") == b"content"
    assert not regular_file(tmp_path / "nothing") and not regular_file(tmp_path / "file" / "below")
    for name, kind in special.items():
        for use in (regular_file, open_regular, read_regular, read_json_object):
            with pytest.raises(UnusualFile, match=f"{name} is {kind}, not a regular file"):
                use(tmp_path / name)
    with pytest.raises(UnusualFile, match="is a device"):
        read_regular(tmp_path.joinpath("/dev/null"))
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing")


def test_a_link_that_the_user_named_may_be_followed_to_a_regular_file(special, tmp_path):
    assert read_regular(tmp_path / "link", follow=True) == b"content"
    assert not regular_file(tmp_path / "broken link", follow=True)
    for name in ("pipe", "linked folder"):
        with pytest.raises(UnusualFile):
            read_regular(tmp_path / name, follow=True)


def test_only_a_folder_of_its_own_is_a_folder(special, tmp_path):
    assert real_folder(tmp_path / "folder") and not real_folder(tmp_path / "nothing")
    for name in ("file", "pipe", "linked folder"):
        with pytest.raises(UnusualFile, match="not a folder of its own"):
            real_folder(tmp_path / name)


def test_the_files_below_a_folder(tmp_path):
    for name in ("b", "a/c", "a/d/e"):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "all" / name).touch()
    assert [str(path.relative_to(tmp_path / "all")) for path in files_below(tmp_path / "all")] == ["a/c", "a/d/e", "b"]
    assert files_below(tmp_path / "nothing") == []
    (tmp_path / "all" / "a" / "link").symlink_to(tmp_path)
    with pytest.raises(UnusualFile, match="a/link is a symbolic link"):
        files_below(tmp_path / "all")


def test_a_file_of_absurd_size_is_not_read(tmp_path):
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnusualFile, match="has 1,099,511,627,776 bytes, more than"):
        read_regular(tmp_path / "huge")


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "\ud800", '{"a": ' + "9" * 5000 + "}"])
def test_what_is_no_json_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=r"^\S+a\.json is not JSON$"):
        read_json_object(tmp_path / "a.json")


def test_json_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match="holds no JSON object"):
        read_json_object(tmp_path / "a.json")


def test_writing_replaces_a_link_and_does_not_follow_one_under_the_temporary_name(tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in ("a", f".a.{os.getpid()}.partial"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    write_durably(tmp_path / "a", [b"new"])
    assert read_regular(tmp_path / "a") == b"new" and (tmp_path / "mine").read_text() == "mine"


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(UnusualFile, match=r"\.lock is a symbolic link"), lock_folder(tmp_path):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
