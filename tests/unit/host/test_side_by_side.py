"""Processes that work side by side end with the command that began them, however it ends."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

WORK = """
import os, sys, time
from verl_hier.host.side_by_side import side_by_side

def work(number):
    os.write(1, b"%d\\n" % os.getpid())  # in one piece: another process writes there too
    time.sleep(600)

if __name__ == "__main__":
    with side_by_side(2, sys.argv[1]) as pool:
        list(pool.map(work, range(2)))
"""


@pytest.mark.parametrize("start", ["spawn", "fork"])
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM])
def test_nobody_works_on_for_a_command_that_was_killed(tmp_path: Path, start: str, ended_by: int) -> None:
    file = tmp_path / "work.py"
    file.write_text(WORK)
    with subprocess.Popen([sys.executable, file, start], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        try:
            working = [psutil.Process(int(command.stdout.readline())) for _ in range(2)]
        except BaseException:
            command.kill()  # or else it is waited for until its work is done
            raise
        command.send_signal(ended_by)
        command.wait()
        _, alive = psutil.wait_procs(working, timeout=60)
        for each in alive:
            each.kill()
    assert not alive
