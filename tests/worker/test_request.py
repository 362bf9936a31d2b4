from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from opguard_ci.worker.request import RunRequest, RunResult

texts = st.text(max_size=8)
requests = st.builds(
    RunRequest,
    target=texts,
    cwd=texts,
    output=texts,
    argv=st.lists(texts, max_size=3).map(tuple),
    level=st.sampled_from(["auto", "contract", "op", "full"]),
    profile=st.sampled_from(["strict", "portable", "observe", None]),
    steps=st.none() | st.integers(1, 9),
    allow_unseen=st.booleans(),
    timeout=st.floats(0, 1e6),
    root=st.none() | texts,
    breadcrumb=st.none() | texts,
    commit=st.none() | texts,
    tree=st.none() | texts,
)
results = st.builds(
    RunResult,
    status=st.sampled_from(["ok", "untestable"]),
    outcome=st.dictionaries(texts, st.integers() | texts, max_size=3),
    trace=texts,
    seconds=st.floats(0, 1e6),
    server=texts,
    hash_seed=texts,
    left_behind=st.lists(texts, max_size=3).map(tuple),
)


@given(requests)
def test_a_request_survives_json(request: RunRequest) -> None:
    """What is read back from JSON text is equal to what was written."""
    assert RunRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


@given(results)
def test_a_result_survives_json(result: RunResult) -> None:
    """What is read back from JSON text is equal to what was written."""
    assert RunResult.from_json(json.loads(json.dumps(result.to_json()))) == result
