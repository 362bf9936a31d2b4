"""The recipes that ship with the package compute what their goldens in this repository hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from opguard_ci.guard import Project, check
from opguard_ci.jobs import Asked, jobs_of
from opguard_ci.reference import Wanted
from opguard_ci.store.recipes import recipe_id

ROOT = Path(__file__).parents[1]
NAMES = ("conv_net", "encoder_bf16", "lstm", "mixture", "tiny_gpt")
TARGETS = [f"opguard_ci/recipes/{name}.py:{name}" for name in NAMES]

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="goldens are compared in a git checkout")


@pytest.fixture(scope="module")
def project(own_cache: None) -> Iterator[Project]:
    with Project(ROOT) as project:
        yield project


def test_every_bundled_recipe_has_a_golden(project: Project) -> None:
    """And there is none of a recipe that is gone."""
    assert [job.target for job in jobs_of(project, (), str(ROOT), Asked())] == TARGETS
    ids = {recipe_id(target, str(ROOT), str(ROOT)) for target in TARGETS}
    assert {file.parent.name for file in (ROOT / "golden").glob("*/*.json")} == ids
    assert project.goldens.prunable(ids, ()) == []


@pytest.mark.parametrize("target", TARGETS)
def test_golden(project: Project, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a golden has this machine's environment key, with it; elsewhere with a run of its commit. Says which."""
    (job,) = jobs_of(project, (target,), str(ROOT), Asked())
    document = check(project, job, Wanted(missing="reference")).document
    reference = document["reference"]
    how = "its golden" if reference["kind"] == "golden" else "a run of its golden's commit"
    with capsys.disabled():
        print(f"\n{target}: compared with {how} {reference['commit'][:12]}", end=" ")
    assert document["verdict"] in ("identical", "equivalent"), document["first_divergence"]


def test_in_another_environment_the_goldens_commit_is_run(project: Project, tmp_path: Path) -> None:
    """As on a machine that these goldens were not recorded on."""
    shutil.copytree(ROOT / "golden", tmp_path / "golden")
    for file in (tmp_path / "golden").glob("*/*.json"):
        document = json.loads(file.read_text())
        document["environment"]["key"] = "0" * 16
        file.with_name(f"{'0' * 16}.json").write_text(json.dumps(document))
        file.unlink()
    with Project(ROOT, golden=str(tmp_path / "golden")) as elsewhere:
        (job,) = jobs_of(elsewhere, TARGETS[-1:], str(ROOT), Asked())
        document = check(elsewhere, job, Wanted(missing="reference")).document
    assert document["reference"]["kind"] == "commit"
    assert document["verdict"] in ("identical", "equivalent")
