"""Targets, arguments, paths, ends of a run (DESIGN 4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .running import Programs

LOOP = """
import torch
from torch import nn

def train(steps=3):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss}
"""


def test_file_form_runs_a_function_with_its_folder_first_on_the_path(programs: Programs):
    """``path/file.py:function``: sys.path[0] is the file's folder; then the working directory and its src."""
    programs.write("src/inside_src.py", "")
    programs.write("beside_root.py", "")
    programs.write("jobs/helper.py", "VALUE = 3")
    programs.write(
        "jobs/train.py",
        """
        import os, sys
        import helper, beside_root, inside_src
        def main():
            print(sys.path[0], sys.path[1], sys.path[2], os.getcwd(), helper.VALUE, __name__, sep="\\n")
        """,
    )
    ran = programs.again("jobs/train.py:main")
    assert ran.ok, ran.answer
    root = str(programs.folder)
    assert ran.stdout.split() == [f"{root}/jobs", root, f"{root}/src", root, "3", "train"]


def test_module_form_runs_a_function_with_the_working_directory_first_on_the_path(programs: Programs):
    """``package.module:function``, relative imports and nested attributes included."""
    programs.write("package/__init__.py", "")
    programs.write("package/helper.py", "VALUE = 4")
    programs.write(
        "package/train.py",
        """
        import sys
        from .helper import VALUE
        class Job:
            @staticmethod
            def main():
                print(sys.path[0], VALUE, __name__, sys.argv[1:])
        """,
    )
    ran = programs.again("package.train:Job.main", argv=("--lr", "0.1"))
    assert ran.stdout.split(" ", 3) == [str(programs.folder), "4", "package.train", "['--lr', '0.1']\n"]


def test_a_script_is_main(programs: Programs):
    """``__name__``, ``__file__``, argparse, its folder on the path, and classes of it in loader workers."""
    programs.write("scripts/helper.py", "VALUE = 5")
    programs.write(
        "scripts/job.py",
        """
        import argparse, os, pickle, sys
        import torch
        from torch.utils.data import DataLoader, Dataset
        import helper

        class Numbers(Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, n):
                return torch.tensor(float(n))

        class Point:
            pass

        if __name__ == "__main__":
            parser = argparse.ArgumentParser()
            parser.add_argument("--lr", type=float)
            print(parser.parse_args().lr, helper.VALUE, __file__, sys.argv[0], os.getcwd())
            print(type(pickle.loads(pickle.dumps(Point()))).__module__, __spec__, __builtins__ is not None)
            for context in ("fork", "spawn"):
                print(sum(DataLoader(Numbers(), num_workers=1, multiprocessing_context=context)).item())
        """,
    )
    ran = programs.again("scripts/job.py", argv=("--lr", "0.5"))
    assert ran.ok, (ran.answer, ran.stderr)
    file = f"{programs.folder}/scripts/job.py"
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["0.5", "5", file, "scripts/job.py", str(programs.folder)]
    assert lines[1:] == ["__main__ None True", "6.0", "6.0"]
    assert ran.manifest["coverage"]["unseen"] == []
    assert any("DataLoader workers" in note for note in ran.manifest["notes"])


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(0)", 0), ("sys.exit()", None), ("sys.exit(3)", 3), ("sys.exit('no data')", "no data")],
)
def test_exit_codes(ending: str, code: int | str | None, programs: Programs):
    """``sys.exit(0)`` is a normal end; another exit is ``untestable``, and the trace up to there is kept."""
    ran = programs.run(f"import sys\n{LOOP}\ntrain()\n{ending}\n", None)
    if not code:
        assert ran.ok
        assert ran.steps == [0, 1, 2, 3]  # the last holds what was left at the end
        assert ran.manifest["complete"]
        return
    assert (ran.answer["status"], ran.answer["slug"], ran.answer["exit"]) == (
        "untestable",
        "exit-code",
        1 if isinstance(code, str) else code,
    )
    assert repr(code) in ran.answer["message"]
    assert ran.manifest["outcome"]["exit"] == ran.answer["exit"]
    assert not ran.manifest["complete"]
    assert len(ran.events("aten.addmm")) == 3


def test_a_process_that_ends_at_once_leaves_its_finished_steps(programs: Programs):
    """``os._exit``: the steps that were over can be read, and the trace says that it is incomplete."""
    ran = programs.run(f"import os\n{LOOP}\ntrain()\nos._exit(7)\n", None)
    assert ran.exit == 7
    assert ran.steps == [0, 1, 2]
    assert not ran.manifest["complete"]


FAILING = """
import threading
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Broken(Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, n):
        raise ValueError("broken row")

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        raise ValueError("broken backward")

class Bad(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        raise ValueError("broken optimizer")

def in_forward():
    nn.Linear(3, 4)(torch.ones(2, 5))

def in_backward():
    Double.apply(torch.ones(3, requires_grad=True)).sum().backward()

def in_hook():
    x = torch.ones(3, requires_grad=True)
    def hook(g):
        raise ValueError("broken hook")
    (x * 2).register_hook(hook)
    y = x * 2
    y.register_hook(hook)
    y.sum().backward()

def in_worker():
    list(DataLoader(Broken(), num_workers=1))

def in_loader():
    list(DataLoader(Broken()))

def in_optimizer():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    Bad([weight], 0.1).step()

def in_thread():
    failed = []
    def work():
        try:
            raise ValueError("broken thread")
        except ValueError as error:
            failed.append(error)
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    raise failed[0]
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("in_forward", "mat1 and mat2"),
        ("in_backward", "broken backward"),
        ("in_hook", "broken hook"),
        ("in_worker", "broken row"),
        ("in_loader", "broken row"),
        ("in_optimizer", "broken optimizer"),
        ("in_thread", "broken thread"),
    ],
)
def test_an_exception_is_shown_as_the_user_would_see_it_bare(function: str, words: str, programs: Programs):
    """The traceback has the user's frames and none of ours."""
    ran = programs.run(FAILING, function)
    assert (ran.answer["status"], ran.answer["slug"]) == ("untestable", "target-raised")
    assert words in ran.answer["traceback"]
    assert "program.py" in ran.answer["traceback"]
    assert "opguard_ci" not in ran.answer["traceback"]
    assert "_dynamo" not in ran.answer["traceback"]
    assert ran.manifest["outcome"]["slug"] == "target-raised"


def test_chained_and_grouped_errors_keep_their_causes(programs: Programs):
    """What Python prints for ``raise … from …`` is in the traceback."""
    ran = programs.run(
        """
        def main():
            try:
                {}["key"]
            except KeyError as error:
                raise RuntimeError("no such key") from error
        """
    )
    assert "KeyError: 'key'" in ran.answer["traceback"]
    assert "direct cause" in ran.answer["traceback"]
    assert "opguard_ci" not in ran.answer["traceback"]


def test_syntax_and_import_errors_are_the_targets(programs: Programs):
    """A file that cannot be compiled or imports what there is not is ``untestable``, not a crash of ours."""
    assert programs.run("def main(:\n", "main").answer["slug"] == "target-raised"
    ran = programs.run("import no_such_module\ndef main(): pass\n", "main")
    assert ran.answer["slug"] == "target-raised"
    assert "no_such_module" in ran.answer["message"]


def test_an_interrupt_ends_the_run(programs: Programs):
    """KeyboardInterrupt passes through, and the trace says why it is incomplete."""
    ran = programs.run(f"{LOOP}\ndef main():\n    train()\n    raise KeyboardInterrupt\n")
    assert ran.answer["class"] == "KeyboardInterrupt"
    assert ran.manifest["outcome"]["slug"] == "interrupted"
    assert ran.steps[:3] == [0, 1, 2]


@pytest.mark.parametrize(
    ("target", "slug"),
    [
        ("missing.py", "target-not-found"),
        ("missing.py:main", "target-not-found"),
        ("missing.module:main", "target-not-found"),
        ("program.py:absent", "target-not-found"),
        ("program.py:NUMBER", "bad-target"),
        ("program.py:1st", "bad-target"),
        ("no colon", "bad-target"),
    ],
)
def test_a_target_that_does_not_exist_is_a_usage_error(target: str, slug: str, programs: Programs):
    """Exit 2, with a sentence that names it."""
    programs.write("program.py", "NUMBER = 1\ndef main(): pass\n")
    assert programs.again(target).answer["slug"] == slug


@pytest.mark.parametrize(
    ("source", "slug"),
    [
        ("def main(size): pass", "target-arguments"),
        ("async def main(): pass", "target-async"),
        ("async def main():\n    yield {}", "target-async"),
        ("from opguard_ci import recipe\n@recipe(steps=2)\ndef main(): return {}", "recipe-yields-nothing"),
        ("from opguard_ci import recipe\n@recipe(steps=2)\ndef main():\n    return\n    yield", "too-few-steps"),
        ("from opguard_ci import recipe\n@recipe(steps=2)\ndef main():\n    yield {}", "too-few-steps"),
        ("def main():\n    return\n    yield", "recipe-yields-nothing"),
    ],
)
def test_a_target_that_cannot_be_run_says_why(source: str, slug: str, programs: Programs):
    """It needs arguments, is a coroutine, yields nothing or too little."""
    ran = programs.run(source)
    assert (ran.answer["status"], ran.answer["slug"]) == ("untestable", slug)


def test_defaults_and_variadic_arguments_are_no_obstacle(programs: Programs):
    """Only arguments that a call must give are."""
    ran = programs.run("def main(lr=0.1, *rest, **more):\n    print(lr, rest, more)\n")
    assert ran.stdout == "0.1 () {}\n"


def test_a_decorated_function_and_a_callable_object_are_targets(programs: Programs):
    """Whatever can be called without arguments is."""
    ran = programs.run(
        """
        import functools
        class Job:
            def __call__(self):
                print("called")
        main = Job()
        part = functools.partial(print, "partial")
        """
    )
    assert ran.stdout == "called\n", ran.answer
    assert programs.again("program.py:part").stdout == "partial\n"


def test_steps_ends_the_run_early_and_well(programs: Programs):
    """``--steps N`` stops after N steps, in each form of target; cleanup of the target runs, unrecorded."""
    source = f"""{LOOP}
from opguard_ci import mark_step
def optimizer():
    try:
        train(9)
    except Exception:
        print("swallowed")
    finally:
        torch.ones(3) + 1
        print("cleaned up")
def marked(mark):
    for step in range(9):
        mark(step)
        torch.ones(3) * step
def yielding():
    try:
        for step in range(9):
            yield {{"value": torch.ones(3) * step}}
    finally:
        print("closed")
"""
    for function, printed in (("optimizer", "cleaned up\n"), ("marked", ""), ("yielding", "closed\n")):
        ran = programs.run(source, function, steps=2)
        assert ran.ok, ran.answer
        assert ran.manifest["complete"]
        assert [step for step in ran.steps if step >= 0] == [0, 1], function
        assert ran.stdout == printed
        assert ran.events("aten.add.Tensor", step=2) == []
    assert programs.run(f"{LOOP}\ntrain(9)\n", None, steps=2).steps == [0, 1]


def test_more_steps_than_there_are_are_the_targets_end(programs: Programs):
    """Asking for more than a plain function makes changes nothing."""
    ran = programs.run(LOOP, "train", steps=50)
    assert ran.ok
    assert ran.steps == [0, 1, 2, 3]


def test_a_recipe_is_stopped_after_its_steps_and_seeded(programs: Programs, strict_programs: Programs):
    """``steps`` and ``seed`` of the decorator; under ``observe`` nothing is seeded."""
    source = """
        import itertools, random
        import numpy, torch
        from opguard_ci import recipe
        @recipe(steps=2, seed=5)
        def main():
            for step in itertools.count():
                print(random.random(), numpy.random.rand(), torch.rand(()).item())
                yield {"step": step}
    """
    first, second = strict_programs.run(source), strict_programs.run(source)
    assert first.ok
    assert first.steps == [0, 1]
    assert first.stdout == second.stdout
    assert first.stdout != strict_programs.run(source.replace("seed=5", "seed=6")).stdout


def test_yields_below_a_function_that_returns_a_generator(programs: Programs):
    """A plain function that hands back a generator is driven like one."""
    ran = programs.run("def main():\n    return ({'value': n} for n in range(3))\n")
    assert ran.ok
    assert ran.steps == [0, 1, 2]


def test_the_output_must_be_free(programs: Programs, tmp_path: Path):
    """A folder that holds something is not overwritten."""
    programs.write("program.py", "def main(): pass")
    assert programs.again("program.py:main").ok
    taken = tmp_path / "run-1" / "trace"
    taken.mkdir(parents=True)
    (taken / "note").touch()
    (tmp_path / "run-1").rename(tmp_path / "run-9")
    from opguard_ci.errors import UsageError
    from opguard_ci.trace.writer import TraceWriter

    with pytest.raises(UsageError, match="not empty"):
        TraceWriter(tmp_path / "run-9" / "trace")


def test_the_process_is_given_back_as_it_was(programs: Programs):
    """sys.argv, sys.path, the working directory and every patched place of torch are restored."""
    programs.write("program.py", "import os\ndef main():\n    os.chdir('/')\n")
    ran = programs.run(
        """
        import json, os, sys, threading, _thread
        import torch
        from torch.optim.optimizer import _global_optimizer_post_hooks
        from opguard_ci.capture.run import execute
        from opguard_ci.worker.request import RunRequest
        def places():
            from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter
            return [sys.argv, list(sys.path), os.getcwd(), torch.autograd.backward, _BaseDataLoaderIter.__next__,
                torch.amp.GradScaler._maybe_opt_step, threading.Thread._bootstrap_inner, _thread.start_new_thread,
                _MultiProcessingDataLoaderIter.__init__, torch._C._len_torch_dispatch_stack(),
                len(torch.nn.modules.module._global_forward_hooks), len(_global_optimizer_post_hooks)]
        if __name__ == "__main__" and "inner" not in sys.argv:
            before = places()
            sys.argv.append("inner")
            before[0] = list(sys.argv)
            open("inner.py", "w").write("import os\\nos.chdir('/')\\n")
            execute(RunRequest("inner.py", cwd=os.getcwd(), output="inner-trace", profile="observe"))
            print(places() == before)
        """,
        None,
    )
    assert ran.ok, ran.answer
    assert ran.stdout == "True\n"


def test_outcome_is_plain_json(programs: Programs):
    """What a run returns crosses a socket."""
    assert json.loads(json.dumps(programs.run(LOOP, "train").answer))["steps"] == 4
