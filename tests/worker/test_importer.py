"""What a run imports: the commit's bytes from its tree, whatever is installed, cached or lying in the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opguard_ci.worker.layout import blob_id
from opguard_ci.worker.plan import ImportPlan

ROOT = Path(__file__).parents[2]


class World:
    """A tree, the user's checkout of the same project, and a site folder with an installation of it."""

    def __init__(self, folder: Path, layout: str = "") -> None:
        self.tree, self.checkout, self.site = folder / "cache" / "tree", folder / "checkout", folder / "site"
        for place in (self.tree, self.checkout, self.site):
            place.mkdir(parents=True)
        self.source = layout
        self.files: dict[str, str] = {}
        self.built: frozenset[str] = frozenset()
        self.linked: frozenset[str] = frozenset()
        self.allowed: tuple[str, ...] = ()

    def commit(self, **files: str | bytes) -> None:
        """Files of the commit, ``a__b`` for ``a/b.py``, below the layout's source folder."""
        for name, content in files.items():
            self.track(str(Path(self.source, spelled(name))), content)

    def track(self, path: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        put(self.tree / path, data)
        self.files[path] = blob_id(data)

    def have(self, **files: str) -> None:
        """Files of the user's checkout."""
        for name, content in files.items():
            put(self.checkout / self.source / spelled(name), content.encode())

    @property
    def plan(self) -> ImportPlan:
        return ImportPlan(str(self.tree), self.files, checkout=str(self.checkout), built=self.built,
                          linked=self.linked, allowed=self.allowed)  # fmt: skip

    def run(self, code: str, *, before: str = "", cwd: Path | None = None, plan: ImportPlan | None = None) -> Any:
        """Run code under the importer in a fresh interpreter that has the site folder; returns what it calls result."""
        file = self.tree.parent / "plan.json"
        (plan or self.plan).save(file)
        script = [
            "import json, site, sys",
            f"sys.path.insert(0, {str(ROOT)!r})",
            f"site.addsitedir({str(self.site)!r})",
            textwrap.dedent(before),
            "from pathlib import Path",
            "from opguard_ci.worker.importer import install",
            "from opguard_ci.worker.plan import ImportPlan",
            "from opguard_ci.worker.watch import watch",
            f"plan = ImportPlan.load(Path({str(file)!r}))",
            "finder = install(plan)",
            "result = None",
            textwrap.dedent(code),
            "print('\\n' + json.dumps(result))",
        ]
        done = subprocess.run([sys.executable, "-c", "\n".join(script)], capture_output=True, text=True, check=False,
                              cwd=cwd or self.tree, env={**os.environ, "PYTHONPATH": ""})  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def install_path_entry(self) -> None:
        """``pip install -e`` as a path in a .pth file: flat and src layouts."""
        put(self.site / "__editable__.project.pth", str(self.checkout / self.source).encode() + b"\n")

    def install_finder(self, mapping: dict[str, str], namespaces: dict[str, list[str]] | None = None) -> None:
        """``pip install -e`` as setuptools' own finder module, made from setuptools' own template."""
        editable = pytest.importorskip("setuptools.command.editable_wheel")
        body = editable._finder_template("project", mapping, namespaces or {})
        put(self.site / "__editable___project_finder.py", body.encode())
        put(self.site / "__editable__.project.pth",
            b"import __editable___project_finder; __editable___project_finder.install()\n")  # fmt: skip

    def install(self, kind: str) -> None:
        if kind == "path":
            self.install_path_entry()
        elif kind == "finder":
            self.install_finder({"pkg": str(self.checkout / self.source / "pkg"),
                                 "late": str(self.checkout / self.source / "late")})  # fmt: skip
        elif kind == "copy":
            for name in ("pkg", "late"):
                if (self.checkout / self.source / name).exists():
                    (self.site / name).symlink_to(self.checkout / self.source / name)


def spelled(name: str) -> str:
    return name.replace("__init", "/INIT").replace("__", "/").replace("INIT", "__init__") + ".py"


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture(params=["", "src"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    made = World(tmp_path, request.param)
    made.commit(pkg__init="from .model import EPS\n", pkg__model="EPS = 1e-5\n")
    made.have(pkg__init="from .model import EPS\n", pkg__model="EPS = 1e-6\n", pkg__newer="X = 1\n")
    made.have(late__init="Y = 1\n")
    return made


EDITABLE = pytest.mark.parametrize("kind", ["none", "path", "finder", "copy"])


@EDITABLE
def test_the_commit_runs_and_not_what_is_installed(world, kind):
    """Editable installs of every kind and copies lead elsewhere; the tree's bytes run and are proven."""
    world.install(kind)
    got = world.run("""
        import pkg, pkg.model
        result = [pkg.EPS, pkg.model.__file__, [[m.module, m.path, m.blob, m.origin] for m in finder.report()]]
    """)
    place = str(Path(world.source, "pkg"))
    assert got[0] == 1e-5
    assert got[1] == str(world.tree / place / "model.py")
    assert sorted(got[2]) == [
        ["pkg", f"{place}/__init__.py", world.files[f"{place}/__init__.py"], "commit"],
        ["pkg.model", f"{place}/model.py", world.files[f"{place}/model.py"], "commit"],
    ]


@EDITABLE
def test_a_module_that_the_commit_lacks_is_missing(world, kind):
    """A submodule that only the checkout or an installed copy has is not found, by import and by find_spec."""
    world.install(kind)
    got = world.run("""
        import importlib.util, pkg
        try:
            import pkg.newer
            result = "imported " + pkg.newer.__file__
        except ModuleNotFoundError as error:
            result = [error.name, importlib.util.find_spec("pkg.newer") is None]
        try:
            from pkg import newer
        except ImportError:
            result.append("import error")
    """)
    assert got == ["pkg.newer", True, "import error"]


@pytest.mark.parametrize("kind", ["path", "finder"])
def test_a_package_that_only_the_checkout_has_is_missing(world, kind):
    """Top-level packages that were added later are not taken from an editable install."""
    world.install(kind)
    assert world.run("""
        try:
            import late
            result = late.__file__
        except ModuleNotFoundError as error:
            result = error.name
    """) == "late"  # fmt: skip


def test_a_path_in_the_checkout_is_led_to_the_tree(world):
    """sys.path entries in the user's checkout become the same place of the tree."""
    world.install("path")
    got = world.run("result = sys.path")
    assert not [entry for entry in got if entry.startswith(str(world.checkout))]
    assert got[0] == str(world.tree)


def test_stale_bytecode_is_not_run_and_none_is_written(world):
    """The edit 1e-5 -> 1e-6 keeps size and second: a .pyc of the old text must not decide."""
    import py_compile

    place = world.tree / world.source / "pkg" / "model.py"
    py_compile.compile(str(place))
    before = place.stat()
    world.commit(pkg__model="EPS = 1e-6\n")
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    caches = sorted(world.tree.rglob("*.pyc"))
    assert world.run("import pkg; result = pkg.EPS") == 1e-6
    assert sorted(world.tree.rglob("*.pyc")) == caches


def test_bytes_that_are_not_the_commits_are_refused(world):
    """A file that something changed since the checkout stops the run; no except ImportError can hide it."""
    put(world.tree / world.source / "pkg" / "model.py", b"EPS = 1e-9\n")
    got = world.run("""
        from opguard_ci.errors import UntestableError
        try:
            import pkg
        except ImportError:
            result = "hidden"
        except UntestableError as error:
            result = [error.slug, error.message]
    """)
    assert got[0] == "proof-failed"
    assert "pkg.model" in got[1]


def test_what_the_run_wrote_itself_is_called_generated(world):
    """Code made during the run is allowed and told apart; pins and built files are named as such."""
    world.track("pinned.py", "P = 1\n")
    world.built = frozenset(["built.py"])
    put(world.tree / "built.py", b"B = 1\n")
    got = world.run("""
        Path("made.py").write_text("M = 1\\n")
        import made, built, pinned
        result = {m.module: m.origin for m in finder.report()}
    """, plan=replace(world.plan, pinned=frozenset(["pinned.py"])))  # fmt: skip
    assert got == {"made": "generated", "built": "built", "pinned": "pinned"}


def test_what_python_offers_for_modules_keeps_working(world):
    """Source text, resources, data, reload, running a module and pickling by name."""
    world.track(str(Path(world.source, "pkg/data/table.txt")), "1 2 3")
    world.commit(pkg__main="import sys\nNAME = __name__\n", pkg__sub__init="", pkg__sub__leaf="class Leaf:\n    pass\n")
    got = world.run("""
        import importlib, importlib.resources, inspect, linecache, pickle, pkgutil, runpy
        import pkg, pkg.model, pkg.sub.leaf
        result = [
            inspect.getsource(pkg.model),
            importlib.resources.files("pkg").joinpath("data/table.txt").read_text(),
            pkgutil.get_data("pkg", "data/table.txt").decode(),
            importlib.reload(pkg.model) is pkg.model,
            runpy.run_module("pkg.main", run_name="__main__")["NAME"],
            type(pickle.loads(pickle.dumps(pkg.sub.leaf.Leaf()))).__module__,
            sorted(m.name for m in pkgutil.iter_modules(pkg.__path__)),
            linecache.getline(pkg.model.__file__, 1),
        ]
    """)
    assert got == ["EPS = 1e-5\n", "1 2 3", "1 2 3", True, "__main__", "pkg.sub.leaf", ["main", "model", "sub"],
                   "EPS = 1e-5\n"]  # fmt: skip


def test_namespace_packages_hold_the_trees_part_and_other_distributions_parts(tmp_path):
    """Without __init__.py: the tree's portion first, an installed one too, the checkout's never."""
    world = World(tmp_path, "src")
    world.commit(corp__train__init="W = 'tree'\n", corp__plain="V = 'tree'\n")
    world.have(corp__train__init="W = 'checkout'\n", corp__plain="V = 'checkout'\n", corp__fresh="")
    put(world.site / "corp" / "shared.py", b"U = 'installed'\n")
    world.install_finder({}, {"corp": [str(world.checkout / "src" / "corp")]})
    got = world.run("""
        import importlib.resources
        import corp.train, corp.plain, corp.shared
        result = [corp.train.W, corp.plain.V, corp.shared.U, list(corp.__path__),
                  importlib.resources.files("corp").is_dir()]
        try:
            import corp.fresh
        except ModuleNotFoundError as error:
            result.append(error.name)
    """)
    assert got[:3] == ["tree", "tree", "installed"]
    assert got[3] == [str(world.tree / "src" / "corp"), str(world.site / "corp")]
    assert got[4:] == [True, "corp.fresh"]


def test_a_data_folder_does_not_hide_an_installed_package(tmp_path):
    """A folder of the tree without __init__.py loses against a regular installed package, as ever in Python."""
    world = World(tmp_path)
    world.track("datasets/prepare.py", "")
    put(world.site / "datasets" / "__init__.py", b"WHO = 'installed'\n")
    assert world.run("import datasets; result = datasets.WHO") == "installed"


def test_modules_imported_too_early_are_reported(world):
    """A project module that was loaded before the finder came is foreign; lazy modules are not woken."""
    got = world.run(
        "result = finder.foreign()",
        before=f"""
        import types
        sys.path.insert(0, {str(world.checkout / world.source)!r})
        import pkg.model
        class Lazy(types.ModuleType):
            def __getattr__(self, name):
                raise SystemExit("woken by " + name)
        sys.modules["lazy"] = Lazy("lazy")
        """,
    )
    assert sorted(name for name, _ in got) == ["pkg", "pkg.model"]
    assert all(place.startswith(str(world.checkout)) for _, place in got)


def test_a_module_behind_a_link_out_of_the_tree_is_refused(world):
    """A tracked symbolic link to a file elsewhere is not the commit's code."""
    outside = world.site / "outside.py"
    put(outside, b"Z = 1\n")
    (world.tree / "linked.py").symlink_to(outside)
    (world.tree / "inner.py").symlink_to(Path(world.source, "pkg", "model.py"))
    got = world.run("""
        from opguard_ci.errors import UntestableError
        import inner
        result = [[m.module, m.origin] for m in finder.report()]
        try:
            import linked
        except UntestableError as error:
            result.append(error.slug)
    """)
    assert got == [["inner", "commit"], "proof-failed"]


def test_compiled_modules_need_the_commit_or_its_build(world):
    """A .so that only the run could have made is refused; a built one is loaded and recorded."""
    import importlib.machinery
    import importlib.util

    spec = importlib.util.find_spec("_ctypes") or importlib.util.find_spec("_bisect")
    if spec is None or not (spec.origin or "").endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
        pytest.skip("this interpreter has no extension module to copy")
    name = f"_xxfake{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    put(world.tree / name, Path(spec.origin).read_bytes())
    code = """
        from opguard_ci.errors import UntestableError
        try:
            import _xxfake
        except UntestableError as error:
            result = error.slug
        except ImportError as error:
            result = [[m.module, m.origin] for m in finder.report()]
    """
    assert world.run(code) == "proof-failed"
    world.built = frozenset([name])
    assert world.run(code) == [["_xxfake", "built"]]  # refused by its own name only after it was proven


def test_the_tool_itself_is_never_taken_from_a_tree(tmp_path):
    """opguard_ci's own commits are judged by the opguard_ci that runs."""
    world = World(tmp_path)
    world.track("opguard_ci/__init__.py", "raise SystemExit('the tree version')\n")
    assert world.run("import opguard_ci.errors; result = opguard_ci.__file__") == str(ROOT / "opguard_ci/__init__.py")


def test_spawned_processes_import_from_the_tree(world):
    """Multiprocessing's spawn starts a new interpreter, which gets the finder before it imports anything."""
    world.install("finder")
    world.commit(pkg__job="def work(x):\n    import pkg\n    return [pkg.EPS, pkg.__file__]\n")
    got = world.run(f"""
        import multiprocessing
        from opguard_ci.worker.spawned import carry
        carry(plan, Path({str(world.tree.parent / "carried.json")!r}))
        from pkg.job import work
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            result = pool.map(work, [1])[0]
    """)
    assert got == [1e-5, str(world.tree / world.source / "pkg" / "__init__.py")]


def test_files_opened_in_the_checkout_are_seen_and_writes_refused(world):
    """Reads are listed, writes raise; the tree, the output and links to inputs may be used, links only to read."""
    put(world.checkout / "weights.bin", b"w")
    put(world.checkout / "inputs" / "vocab.txt", b"v")
    (world.checkout / "out").mkdir()
    (world.tree / "inputs").symlink_to(world.checkout / "inputs")
    world.linked = frozenset(["inputs"])
    world.allowed = (str(world.checkout / "out"),)
    got = world.run(f"""
        import os
        seen = watch(plan)
        here = {str(world.checkout)!r}
        open(here + "/weights.bin").close()
        open("inputs/vocab.txt").close()
        Path(here, "out", "trace").write_text("t")
        Path("scratch").write_text("s")
        refused = []
        def attempt(do):
            try:
                do()
            except PermissionError as error:
                refused.append(os.path.relpath(error.filename, here))
        attempt(lambda: open(here + "/weights.bin", "ab"))
        attempt(lambda: open(os.path.relpath(here + "/fresh", "."), "w"))
        attempt(lambda: os.remove(here + "/weights.bin"))
        attempt(lambda: Path("inputs/vocab.txt").write_text("changed"))
        os.chdir(here)
        open("weights.bin").close()
        attempt(lambda: Path("made").mkdir())
        reads = [os.path.relpath(path, here) for path in seen.reads]
        result = [reads, refused, len(seen.writes)]
        seen.stop()
    """)
    reads, refused, writes = got
    assert reads == ["weights.bin"]
    assert refused[:3] == ["weights.bin", "fresh", "weights.bin"]
    assert refused[3].endswith("inputs/vocab.txt")
    assert refused[4:] == ["made"]
    assert writes == 4
    assert (world.checkout / "inputs" / "vocab.txt").read_bytes() == b"v"


def test_an_environment_inside_the_checkout_is_not_the_users_code(tmp_path):
    """A virtual environment in the project's folder is read all the time and says nothing."""
    plan = ImportPlan(str(tmp_path / "c" / "cache" / "tree"), {}, checkout=str(tmp_path / "c"))
    assert not plan.borders().is_users(str(tmp_path / "c" / "cache" / "tree" / "a.py"))
    assert plan.borders().is_users(str(tmp_path / "c" / "a.py"))
    home = replace(plan, checkout=str(Path(sys.prefix).parent))
    assert not home.borders().is_users(str(Path(sys.prefix, "lib", "x.py")))


def test_a_plan_survives_its_file(tmp_path):
    """Odd file names and all sets come back."""
    plan = ImportPlan("/t", {"a\udcff\n.py": "0" * 40}, ("x",), "/c", "sha256", frozenset("p"), frozenset("b"),
                      frozenset("l"), ("/o",))  # fmt: skip
    plan.save(tmp_path / "plan.json")
    assert ImportPlan.load(tmp_path / "plan.json") == plan
