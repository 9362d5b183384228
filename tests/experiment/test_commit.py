"""The commit that a run is recorded with, read without running a program of the repository one stands in."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from rl_training.experiment.commit import git_commit

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git to make repositories")


def git(folder, *words):
    name = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(["git", *name, *words], cwd=folder, capture_output=True, text=True, check=True, env=clean)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit, in which the test stands."""
    folder = tmp_path / "repository"
    (folder / "below").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    monkeypatch.chdir(folder)
    return folder


def test_the_commit_of_a_branch_a_packed_branch_and_a_detached_head(repository, monkeypatch):
    commit = git(repository, "rev-parse", "HEAD")
    expected = {"commit": commit, "modified": False}
    assert git_commit() == expected
    monkeypatch.chdir(repository / "below")
    assert git_commit() == expected
    git(repository, "pack-refs", "--all")
    assert not (repository / ".git" / "refs" / "heads" / "main").exists() and git_commit() == expected
    git(repository, "gc", "-q")
    assert git_commit() == expected
    git(repository, "checkout", "-q", "--detach")
    assert git_commit() == expected


def test_changed_files_count_whether_they_are_staged_or_not(repository):
    (repository / "untracked.txt").write_text("x")
    assert git_commit()["modified"] is False
    (repository / "a.txt").write_text("two\n")
    assert git_commit()["modified"] is True
    git(repository, "add", "a.txt")
    assert git_commit()["modified"] is True
    git(repository, "commit", "-q", "-m", "second")
    assert git_commit() == {"commit": git(repository, "rev-parse", "HEAD"), "modified": False}


def test_a_worktree_has_a_commit_of_its_own(repository, tmp_path, monkeypatch):
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    (tmp_path / "tree" / "a.txt").write_text("three\n")
    git(tmp_path / "tree", "commit", "-q", "-a", "-m", "other")
    monkeypatch.chdir(tmp_path / "tree")
    assert git_commit() == {"commit": git(tmp_path / "tree", "rev-parse", "HEAD"), "modified": False}
    assert git_commit()["commit"] != git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize("trap", ["fsmonitor", "filter", "hook", "bare"])
def test_no_program_of_the_repository_runs(repository, tmp_path, trap, monkeypatch):
    commit = git(repository, "rev-parse", "HEAD")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'it_ran'}\ncat\n")
    program.chmod(0o755)
    if trap == "fsmonitor":
        git(repository, "config", "core.fsmonitor", str(program))
    if trap == "filter":
        (repository / ".gitattributes").write_text("* filter=theirs\n")
        git(repository, "config", "filter.theirs.clean", str(program))
    if trap == "hook":
        for name in ("post-index-change", "pre-auto-gc", "post-checkout"):
            shutil.copy(program, repository / ".git" / "hooks" / name)
    if trap == "bare":  # a folder that is a repository without being called .git
        monkeypatch.chdir(repository / ".git")
        git(repository, "config", "core.fsmonitor", str(program))
        git(repository, "config", "core.worktree", str(repository))
    os.utime(repository / "a.txt", (1, 1))  # it must be looked into: its time has changed
    assert git_commit()["commit"] == commit
    assert not (tmp_path / "it_ran").exists()


def test_a_folder_outside_any_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None


@pytest.mark.parametrize("head", ["ref: ../../secret", "ref: refs/../../secret", "hello", "", "ref: refs/heads/main"])
def test_an_odd_head_names_no_commit(tmp_path, monkeypatch, head):
    (tmp_path / "secret").write_text("0" * 40)
    (tmp_path / "repository" / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / "repository" / ".git" / "HEAD").write_text(head)
    (tmp_path / "repository" / ".git" / "refs" / "heads" / "main").write_text("ref: refs/heads/main\n")
    monkeypatch.chdir(tmp_path / "repository")
    assert git_commit() is None


def test_a_head_that_is_a_pipe_does_not_hang(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    monkeypatch.chdir(tmp_path)
    assert git_commit() is None
