"""The table of `verl-hier train` on a terminal, and its lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from verl_hier.cli.live import ROWS, RunTable

STEP = {
    "timing_s/step": 2.0,
    "hier/episodes/success": 0.25,
    "hier/tokens/generated": 9000,
    "hier/credit/[red]x[/red]/mean": 0.0,
}
PLAYED = f"""
from verl_hier.cli.live import RunTable
with RunTable(40) as shown:
    shown.said("verl's output goes to [bold]a file[/bold]")
    shown.step({{"step": 0, "val-core/w/acc/mean@1": 0.5}})
    for step in range(1, 21):
        shown.step({{"step": step, **{STEP!r}, "hier/guards/alarms": float(step == 20)}})
"""


def on_a_terminal(code: str) -> str:
    """What a program writes to a terminal, without the codes that move the cursor and colour the words."""
    ours, its = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=its, stderr=its, env=variables)
    os.close(its)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0, said.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode())


def test_a_terminal_shows_one_table_of_the_last_steps() -> None:
    said = on_a_terminal(PLAYED)
    assert "verl's output goes to [bold]a file[/bold]" in said, "words are not markup"
    last = said[said.rindex("tokens/s") :].splitlines()
    rows = [row.split() for row in last if re.match(r" *\d+/40 ", row)]
    assert [row[0] for row in rows] == [f"{step}/40" for step in range(21 - ROWS, 21)]
    assert rows[-1] == ["20/40", "[red]x[/red]", "0.25", "4.5k", "2.0", "1"] and len(rows[-2]) == len(rows[-1]) - 1
    assert "40 s left" in last[-1] + last[-2]


def test_a_pipe_gets_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with RunTable(4) as shown:
        shown.said("it begins")
        shown.step({"step": 0, "val-core/w/acc/mean@1": 0.5})
        shown.step({"step": 1, **STEP, "hier/guards/alarms": 2.0, "hier/turns/cut_share": 0.125})
        shown.step({"step": 2, **STEP, "hier/turns/cut_share": 0.0})
    first, before, step, whole = capsys.readouterr().out.splitlines()
    assert (first, before) == ("it begins", "before step 1  validation 0.50")
    assert step.startswith("step 1/4  ") and step.endswith("6 s left  12.5% of the turns cut  2 alarm(s)")
    assert whole.endswith(" left"), "nothing is said of turns that were not cut"
