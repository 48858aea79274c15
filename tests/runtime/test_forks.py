"""A runtime after a fork: the child is told, the parent goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
SCRIPT = f"""
import importlib.util, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork with threads
spec = importlib.util.spec_from_file_location("conftest", {str(CONFTEST)!r})
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)
import radixlang
from radixlang.errors import ForkedError, ProgramError

@radixlang.function
def program(s):
    s += "The theatre in the north " + radixlang.gen("x", max_tokens=4)

def check(runtime, branch):
    calls = [lambda: program(runtime=runtime), runtime.new_branch, runtime.tree_text, runtime.audit,
             branch.tokens().result, lambda: runtime.prebuild("The theatre"),
             branch.generate(radixlang.SamplingParams()).result]
    for call in calls:
        try:
            call()
        except (ForkedError, ProgramError) as error:
            assert f"made in process {{os.getppid()}}" in str(error), error
        else:
            raise AssertionError("it was not told")
    branch.release()
    runtime.close()

with radixlang.Runtime(conftest.make_tiny_model(), num_pages=512) as runtime:
    program(runtime=runtime)
    branch = runtime.new_branch()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check(runtime, branch)
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    branch.release()
    assert len(program(runtime=runtime)["x"]) > 0
    assert runtime.audit() == []
"""


def test_a_runtime_of_the_parent_tells_the_child_at_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
