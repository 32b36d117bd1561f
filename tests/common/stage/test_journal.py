"""The journal: durable, exclusive, and honest about what a crash left."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from services.common.files import DamagedFile
from services.common.rpc.errors import MeshError, Reason
from services.common.stage.journal import Journal, JournalHeld


def opened(folder: Path) -> Journal:
    journal = Journal(folder)
    journal.open()
    return journal


def test_last_record_of_a_run_counts_after_a_reopen(tmp_path: Path) -> None:
    """What was appended last is what a restart reads, oldest run first."""
    journal = opened(tmp_path)
    journal.append("run_b", {"n": 1})
    journal.append("run_a", {"n": 2})
    journal.append("run_b", {"n": 3})
    journal.close()
    assert Journal(tmp_path).open() == {"run_b": {"n": 3}, "run_a": {"n": 2}}


def test_id_survives_a_restart_and_a_new_folder_has_another(tmp_path: Path) -> None:
    """A journal keeps its id; a lost disk is another journal."""
    first = opened(tmp_path / "one")
    first_id = first.journal_id
    first.close()
    again = opened(tmp_path / "one")
    other = opened(tmp_path / "two")
    assert again.journal_id == first_id
    assert other.journal_id != first_id


def test_torn_last_line_is_cut(tmp_path: Path) -> None:
    """A line that a crash tore was told to nobody and is gone after a restart."""
    journal = opened(tmp_path)
    journal.append("run_a", {"n": 1})
    journal.close()
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"run_id":"run_b","n"')
    again = Journal(tmp_path)
    assert again.open() == {"run_a": {"n": 1}}
    again.append("run_c", {"n": 2})
    again.close()
    assert Journal(tmp_path).open() == {"run_a": {"n": 1}, "run_c": {"n": 2}}


@pytest.mark.parametrize(
    ("line", "content"),
    [(1, b"nonsense"), (1, b'["a list"]'), (2, b'{"n":1}'), (2, b"\xff\xfe"), (3, b"{}")],
)
def test_damaged_line_is_told_and_nothing_is_changed(
    tmp_path: Path, line: int, content: bytes
) -> None:
    """With its number and what to do; a journal of which a line is missing proves nothing."""
    journal = opened(tmp_path)
    for number in range(3):
        journal.append(f"run_{number}", {"n": number})
    journal.close()
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines()
    lines[line - 1] = content
    path.write_bytes(damaged := b"\n".join(lines) + b"\n")
    with pytest.raises(DamagedFile, match=f"line {line}, .*resolve"):
        Journal(tmp_path).open()
    assert path.read_bytes() == damaged


def test_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    """One process holds a journal; kill -9 lets it go."""
    held = "from services.common.stage.journal import Journal; from pathlib import Path; import sys"
    code = f"{held}; Journal(Path(sys.argv[1])).open(); print('held', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    with pytest.raises(JournalHeld, match="another process"):
        Journal(tmp_path).open()
    child.kill()
    child.wait()
    assert Journal(tmp_path).open() == {}


def test_record_that_does_not_fit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """On a full disk the append says DISK_FULL and what was there stays readable."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from services.common.stage.journal import Journal\n"
        "from services.common.rpc.errors import MeshError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "journal = Journal(Path(sys.argv[1])); journal.open(); journal.append('run_a', {'n': 1})\n"
        "size = (Path(sys.argv[1]) / 'journal.jsonl').stat().st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))\n"
        "try:\n    journal.append('run_b', {'n': 2})\n"
        "except MeshError as error:\n    print(error.reason)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == Reason.DISK_FULL
    assert Journal(tmp_path).open() == {"run_a": {"n": 1}}
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_long_history_is_rewritten_with_one_line_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start shortens a long file without losing a run."""
    journal = opened(tmp_path)
    for number in range(20):
        journal.append("run_a", {"n": number})
    journal.append("run_b", {"n": 0})
    journal.close()
    monkeypatch.setattr("services.common.stage.journal._REWRITE_LINES", 10)
    shortened = Journal(tmp_path)
    shortened.open()
    shortened.close()
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 3
    assert Journal(tmp_path).open() == {"run_a": {"n": 19}, "run_b": {"n": 0}}


def test_closed_journal_refuses_to_write(tmp_path: Path) -> None:
    """Nothing is written after another process may have taken over."""
    journal = opened(tmp_path)
    journal.close()
    with pytest.raises((RuntimeError, MeshError)):
        journal.append("run_a", {})
    assert Journal(tmp_path).open() == {}
