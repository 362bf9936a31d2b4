from __future__ import annotations

import hashlib
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.store.recipes import recipe_id


def test_a_recipe_has_one_id_from_everywhere(tmp_path: Path) -> None:
    """The target relative to the root in safe characters, and 8 digits of its sha256."""
    (tmp_path / "sub").mkdir()
    digest = hashlib.sha256(b"sub/train.py:main").hexdigest()[:8]
    for target, cwd in (("sub/train.py:main", tmp_path), ("train.py:main", tmp_path / "sub")):
        assert recipe_id(target, str(cwd), str(tmp_path)) == f"sub_train.py_main-{digest}"


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20))
def test_any_name_becomes_a_file_name(name: str) -> None:
    """Spaces, other scripts and punctuation are replaced; the digest keeps them apart."""
    found = recipe_id(f"{name}.py:train", "/root", "/root")
    assert re.fullmatch(r"[A-Za-z0-9._-]+-[0-9a-f]{8}", found)
    assert recipe_id(f"{name}x.py:train", "/root", "/root") != found
