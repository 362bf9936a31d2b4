"""Which step a case must be found in where chance decides what memory holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.expectations import DATA, load_case
from tests.cases.served import run_side
from tests.cases.sides import Sides


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("alike", "wrong"), [("i == 0", []), ("True", ["transient does not list"])])
def test_memory_that_nobody_wrote_may_hold_the_same_in_both_runs(tmp_path: Path, alike: str, wrong: list[str]):
    """The padding need not differ in step 0 already, but it must in some step, and the first one must be listed."""
    text = (DATA / "f_uninit_padding.py").read_text()
    empty = "work = torch.empty(PADDED, 8)\n"
    filled = f"{empty}        if {alike}:\n            ctypes.memset(work.data_ptr(), 0, work.nbytes)\n"
    program = tmp_path / "case.py"
    program.write_text(text.replace("import os\n", "import ctypes\nimport os\n").replace(empty, filled))
    examined = Sides(load_case(program), tmp_path, run_side).examine("original")
    listed = {entry["step"] for entry in examined.verdict["transient"]}
    assert listed == (set() if wrong else {1, 2})
    assert [said[:23] for said in examined.problems if "transient" in said] == wrong
