"""What git knows about a folder, asked of a real git."""

import os
import subprocess

import pytest

from holdfast.documents.checkout import checkout


@pytest.fixture(autouse=True)
def plain_git(monkeypatch, tmp_path) -> None:
    """No settings of this machine, and no checkout above the test's own folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "test")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "test@example.org")


def git(folder, *arguments: str) -> str:
    told = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return told.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "kept.txt").write_text("one\n")
    (tmp_path / "moved.txt").write_text("some text that is long enough to be found again\n" * 5)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_clean_checkout_has_a_head_and_a_branch(repository) -> None:
    assert checkout(str(repository)) == {
        "head": git(repository, "rev-parse", "HEAD"),
        "branch": "main",
        "changed": [],
        "more": 0,
    }


def test_every_kind_of_change_is_named_by_its_path(repository) -> None:
    (repository / "kept.txt").write_text("two\n")
    (repository / "new file.txt").write_text("")
    (repository / "größe.txt").write_text("")
    (repository / "folder").mkdir()
    (repository / "folder" / "inside.txt").write_text("")
    git(repository, "mv", "moved.txt", "to here.txt")
    known = checkout(repository / "folder")
    assert sorted(known["changed"]) == ["folder/", "größe.txt", "kept.txt", "new file.txt", "to here.txt"]


def test_a_conflict_is_a_change(repository) -> None:
    git(repository, "switch", "-q", "-c", "other")
    (repository / "kept.txt").write_text("theirs\n")
    git(repository, "commit", "-qam", "theirs")
    git(repository, "switch", "-q", "main")
    (repository / "kept.txt").write_text("ours\n")
    git(repository, "commit", "-qam", "ours")
    subprocess.run(["git", "merge", "-q", "other"], cwd=repository, check=False, capture_output=True)
    assert checkout(repository)["changed"] == ["kept.txt"]


def test_only_the_first_fifty_changes_are_named(repository) -> None:
    for number in range(60):
        (repository / f"new{number:02}.txt").write_text("")
    known = checkout(repository)
    assert known["changed"] == [f"new{number:02}.txt" for number in range(50)]
    assert known["more"] == 10


def test_a_detached_head_has_no_branch(repository) -> None:
    git(repository, "checkout", "-q", "--detach")
    known = checkout(repository)
    assert (known["head"], known["branch"]) == (git(repository, "rev-parse", "HEAD"), None)


def test_a_repository_without_commit_has_no_head(tmp_path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "new.txt").write_text("")
    assert checkout(tmp_path) == {"head": None, "branch": "main", "changed": ["new.txt"], "more": 0}


def test_a_name_that_is_no_text_is_shown_as_text(repository) -> None:
    name = os.path.join(os.fsencode(repository), b"\xff.txt")
    try:
        os.close(os.open(name, os.O_CREAT))
    except OSError:
        pytest.skip("this file system takes no such name")
    (shown,) = checkout(repository)["changed"]
    assert shown.encode().decode() == shown


def test_looking_changes_nothing(repository) -> None:
    os.utime(repository / "kept.txt", (1, 1))  # what makes git write its index again, if it may
    before = (repository / ".git" / "index").read_bytes()
    assert checkout(repository)["changed"] == []
    assert (repository / ".git" / "index").read_bytes() == before


def test_looking_waits_for_no_lock(repository) -> None:
    (repository / ".git" / "index.lock").write_text("")
    assert checkout(repository)["branch"] == "main"


def test_the_checkout_of_the_folder_is_meant_also_inside_a_hook(
    repository, tmp_path_factory, monkeypatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q", "-b", "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert checkout(repository)["branch"] == "main"


@pytest.mark.parametrize("folder", ["", "missing", "file.txt", "nul\0"])
def test_where_there_is_no_checkout_nothing_is_known(tmp_path, folder) -> None:
    (tmp_path / "file.txt").write_text("")
    assert checkout(os.path.join(tmp_path, folder)) is None


def test_a_bare_repository_is_no_checkout(tmp_path) -> None:
    git(tmp_path, "init", "-q", "--bare")
    assert checkout(tmp_path) is None


def test_without_git_nothing_is_known(repository, tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    assert checkout(repository) is None


def test_a_git_that_hangs_is_not_waited_for(repository, tmp_path_factory, monkeypatch) -> None:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "git").write_text("#!/bin/sh\nexec cat /dev/zero > /dev/null\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("holdfast.documents.checkout._TIMEOUT_S", 0.05)
    assert checkout(repository) is None
