"""Collections are put off, and go on as they did."""

from __future__ import annotations

import gc

import pytest

from opguard_ci.garbage import no_collections


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_left_as_it_was(is_on: bool) -> None:
    """Off meanwhile; afterwards, also after an error, as its owner had it."""
    before = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with pytest.raises(KeyError), no_collections():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if before else gc.disable)()
