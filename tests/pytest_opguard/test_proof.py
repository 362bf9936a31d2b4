"""The reference is the commit's code: a src layout with an editable install, and code of the checkout planted in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytest_opguard.conftest import LIB, RECIPE, Project, text_of

pytest_plugins = "pytester"

PLANTED = """\
import importlib.util
import sys


def plant():
    spec = importlib.util.spec_from_file_location("package.extra", {path!r})
    sys.modules["package.extra"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["package.extra"])
"""


@pytest.fixture
def editable(project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project in a src layout, installed as ``pip install -e`` does it: a path in a .pth file."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(site)!r})\n")
    (site / "__editable__.project.pth").write_text(f"{project.dir / 'src'}\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.syspath_prepend(str(project.dir / "src"))
    (project.dir / "lib.py").unlink()
    project.git.put("src/package/__init__.py", "")
    project.write(src__package__lib=LIB, tests__test_it=RECIPE.replace("from lib", "from package.lib"))
    project.git.commit("src layout")
    return project


def test_src_layout_with_an_editable_install(editable: Project) -> None:
    """A rename passes, a changed eps fails, and code of the checkout that a commit got hold of is refused."""
    editable.edit("model", "network", "src/package/lib.py")
    editable.edit('"network": network', '"model": network', "src/package/lib.py")
    editable.git.commit("rename")
    editable.pytest("tests", "--opguard-reference=HEAD~1").assert_outcomes(passed=1)

    editable.edit(file="src/package/lib.py")
    editable.git.commit("eps")
    changed = editable.pytest("tests", "--opguard-reference=HEAD~1")
    changed.assert_outcomes(failed=1)
    assert "eps 1e-05 -> 0.001" in text_of(changed)

    extra = editable.dir / "src/package/extra.py"
    editable.write(src__package__extra="", src__package__plant=PLANTED.format(path=str(extra)))
    editable.edit("    yield", "    from package.plant import plant\n    plant()\n    yield", "tests/test_it.py")
    editable.git.commit("planted")
    refused = editable.pytest("tests", "--opguard-reference=HEAD")
    refused.assert_outcomes(errors=1)
    assert f"Code that is not the commit's was imported: package.extra ({Path(extra)})" in " ".join(
        text_of(refused).split()
    )
    assert "[proof-failed]" in text_of(refused)
