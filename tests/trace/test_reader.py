"""The reader: whatever stands on disk, it gives steps or one clear error, never a crash, a hang or a wrong answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_ci.errors import IncomparableError, OpguardError, UsageError
from opguard_ci.trace.columns import ARROW_SCHEMA, Encoder
from opguard_ci.trace.model import StepInfo
from opguard_ci.trace.reader import read_trace
from tests.trace.folders import content, manifest, training_run, write


def slug(path: Path, rank: int = 0, **options: Any) -> str:
    """The slug of the error that reading all of a trace ends with."""
    with pytest.raises(UsageError) as caught:
        list(read_trace(path, **options).steps(rank))
    assert "\n" not in caught.value.message
    return caught.value.slug


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete trace of four steps, not to be changed."""
    return write(tmp_path_factory.mktemp("trace") / "t", training_run(4, 12))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(written, tmp_path / "t"))


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Change keys of a manifest on disk."""
    file = folder / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_folder_and_manifest_name_the_same_trace(written: Path) -> None:
    """Either path opens it; `index` tells the steps without unpacking them."""
    for path in (written, written / "manifest.json", str(written)):
        trace = read_trace(path)
        assert trace.path == Path(path)
        assert trace.index() == [StepInfo(step, 12 * step, 12) for step in range(4)]
        assert len(list(trace.steps())) == 4


def test_a_golden_finds_its_events_by_sha256(written: Path, tmp_path: Path) -> None:
    """`golden/<recipe>/<key>.json` with `golden/objects/<sha256>`; large objects may lie elsewhere."""
    document = json.loads((written / "manifest.json").read_text())
    golden = tmp_path / "golden" / "train.py_main-0123abcd" / "key.json"
    golden.parent.mkdir(parents=True)
    golden.write_text(json.dumps({**document, "who": "me", "why": "new"}))
    assert read_trace(golden).manifest["why"] == "new"
    assert slug(golden) == "events-missing"
    (elsewhere := tmp_path / "cache").mkdir()
    stored = elsewhere / document["objects"]["events-0.arrows"]["sha256"]
    shutil.copy(written / "events-0.arrows", stored)
    assert len(list(read_trace(golden, objects=[elsewhere]).steps())) == 4
    (tmp_path / "golden" / "objects").mkdir()
    stored.rename(tmp_path / "golden" / "objects" / stored.name)
    assert len(list(read_trace(golden).steps())) == 4


def test_a_step_that_is_not_there(written: Path) -> None:
    """Its own slug, as for a rank."""
    for ask, expected in ((lambda t: t.step(9), "no-such-step"), (lambda t: t.index(1), "no-such-rank")):
        with pytest.raises(UsageError) as caught:
            ask(read_trace(written))
        assert caught.value.slug == expected


def test_what_is_no_trace(tmp_path: Path, written: Path) -> None:
    """Missing paths, other folders and other files each say what they are not."""
    assert slug(tmp_path / "absent") == "trace-not-found"
    assert slug(tmp_path / "a\0b") == "trace-not-found"
    assert slug(tmp_path) == "not-a-trace"
    assert slug(written / "events-0.arrows") == "not-a-trace"
    for text in ("", "[]", "{}", "null", "[" * 100_000, '{"schema": 1e999}', '{"schema": NaN}', "\udcff", "9" * 5000):
        (tmp_path / "x.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert slug(tmp_path / "x.json") in ("not-a-trace", "trace-damaged")


def test_a_manifest_of_unreasonable_size(tmp_path: Path) -> None:
    """It is not even parsed."""
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)
    assert slug(tmp_path) == "not-a-trace"


@pytest.mark.parametrize("name", ["manifest.json", "events-0.arrows"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "dangling"])
def test_only_regular_files_are_opened(folder: Path, name: str, kind: str) -> None:
    """A link could lead out of the trace, a pipe could wait for ever."""
    file = folder / name
    file.rename(folder.parent / name)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(folder.parent / name if kind == "link" else folder / "nowhere")
    assert slug(folder) == "trace-damaged"


def test_the_trace_itself_may_be_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    """What the user names is the user's choice."""
    (tmp_path / "latest").symlink_to(folder)
    assert len(list(read_trace(tmp_path / "latest").steps())) == 4


def test_another_schema_is_named(folder: Path) -> None:
    """Exit 3, and the field with both versions."""
    rewrite_manifest(folder, schema=2)
    with pytest.raises(IncomparableError, match="schema: the trace has 2, this opguard_ci reads 1") as caught:
        read_trace(folder)
    assert (caught.value.slug, caught.value.exit_code) == ("other-schema", 3)


def test_a_changed_event_file_is_noticed(folder: Path) -> None:
    """The manifest's sha256 guards a complete trace, unless the caller trusts it."""
    rewrite_manifest(folder, objects={"events-0.arrows": {"sha256": "0" * 64, "bytes": 1}})
    assert slug(folder) == "trace-damaged"
    assert len(list(read_trace(folder, verify=False).steps())) == 4


def test_a_complete_trace_has_all_its_bytes(folder: Path) -> None:
    """Cut short it is damaged; the same file of an incomplete trace gives the steps before the cut."""
    file = folder / "events-0.arrows"
    file.write_bytes(file.read_bytes()[:-300])
    assert slug(folder) == slug(folder, verify=False) == "trace-damaged"
    rewrite_manifest(folder, complete=False)
    assert [table.step for table in read_trace(folder).steps()] == [0, 1, 2]
    file.unlink()
    assert list(read_trace(folder).steps()) == []
    rewrite_manifest(folder, complete=True)
    assert slug(folder) == "events-missing"


def test_every_cut_of_an_incomplete_trace_gives_a_prefix(folder: Path) -> None:
    """Cut anywhere, whole steps remain, in order, and each is equal to what was written."""
    rewrite_manifest(folder, complete=False)
    file = folder / "events-0.arrows"
    data = file.read_bytes()
    expected = [content(table) for table in training_run(4, 12)]
    lengths = {0, 1, 7, 8, 9, len(data) - 1, len(data), *random.Random(1).sample(range(len(data)), 150)}
    before = 0
    for length in sorted(lengths):
        file.write_bytes(data[:length])
        steps = [content(table) for table in read_trace(folder).steps()]
        assert steps == expected[: len(steps)]
        assert len(steps) >= before
        before = len(steps)
    assert before == 4


def test_flipped_bytes_never_crash(folder: Path) -> None:
    """Damage inside the file gives steps or an OpguardError, nothing else."""
    rewrite_manifest(folder, complete=False)
    file = folder / "events-0.arrows"
    data = file.read_bytes()
    source = random.Random(2)
    damaged = 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(source.choice([1, 1, 1, 4])):
            changed[source.randrange(len(data))] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
        file.write_bytes(changed)
        try:
            for table in read_trace(folder).steps():
                list(table.events())
        except OpguardError:
            damaged += 1
    assert damaged > 50


def test_a_small_file_cannot_ask_for_all_memory(folder: Path) -> None:
    """A buffer that claims to unpack to terabytes is refused before Arrow allocates it."""
    rewrite_manifest(folder, complete=False)
    file = folder / "events-0.arrows"
    data = file.read_bytes()
    magic = struct.pack("<I", 0xFD2FB528)  # begins a zstd frame; Arrow puts the unpacked size before it
    places = [place for place in range(8, len(data)) if data.startswith(magic, place)]
    assert len(places) > 20
    for claim in (1 << 31, 1 << 45, (1 << 63) - 1, -2, -(1 << 63)):
        for place in places[:: len(places) // 8]:
            file.write_bytes(data[: place - 8] + struct.pack("<q", claim) + data[place:])
            assert slug(folder) == "trace-damaged"


def test_a_step_with_too_many_values_is_refused(folder: Path, tmp_path: Path) -> None:
    """Zeros pack well: a few kilobytes may hold more numbers than memory."""
    rewrite_manifest(folder, complete=False)
    zeros = pa.array([0], pa.int32()).take(pa.array([0] * 1000, pa.int32()))
    batch = pa.RecordBatch.from_arrays([pa.concat_arrays([zeros] * 40_000)], ["step"])
    with pa.ipc.new_stream(
        folder / "events-0.arrows", batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_batch(batch, custom_metadata={"step": "0", "first": "0"})
    assert (folder / "events-0.arrows").stat().st_size < 100_000
    assert slug(folder) == "trace-damaged"


def _stream(folder: Path, batches: list[tuple[pa.RecordBatch, dict[str, str]]]) -> None:
    rewrite_manifest(folder, complete=False)
    with pa.ipc.new_stream(folder / "events-0.arrows", batches[0][0].schema) as stream:
        for batch, place in batches:
            stream.write_batch(batch, custom_metadata=place)


def test_columns_of_another_type_are_refused(folder: Path) -> None:
    """Missing columns and other types are named."""
    batch = Encoder().batch(training_run(1, 3)[0])
    place = {"step": "0", "first": "0"}
    for name in ARROW_SCHEMA.names:
        _stream(folder, [(batch.drop_columns([name]), place)])
        assert slug(folder) == "trace-damaged"
    wide = batch.set_column(0, "step", batch.column("step").cast(pa.int64()))
    _stream(folder, [(wide, place)])
    with pytest.raises(UsageError, match="column step is not of type int32"):
        list(read_trace(folder).steps())
    _stream(folder, [(batch.append_column("mine", batch.column("lane")), place)])
    assert len(list(read_trace(folder).steps())) == 1


def test_steps_out_of_order_are_refused(folder: Path) -> None:
    """Steps count upwards and events run on; a batch that does not say where it stands is refused."""
    first, second = (Encoder().batch(table) for table in training_run(2, 3))
    good = {"step": "0", "first": "0"}
    for place in ({"step": "0", "first": "3"}, {"step": "1", "first": "4"}, {"step": "1"}, {"step": "x", "first": "3"}):
        _stream(folder, [(first, good), (second, place)])
        assert slug(folder) == "trace-damaged"


MANIFEST_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(manifest())), MANIFEST_VALUES, min_size=1, max_size=3))
@settings(max_examples=200)
def test_any_manifest_gives_a_trace_or_an_error(tmp_path_factory: pytest.TempPathFactory, changes: Any) -> None:
    """Keys with other values and types never raise anything else."""
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest(**changes)))
    with contextlib.suppress(OpguardError):
        assert list(read_trace(folder).steps()) == []


@given(st.binary(max_size=200), st.integers(0, 2000))
@settings(max_examples=200)
def test_any_bytes_for_a_manifest(tmp_path_factory: pytest.TempPathFactory, data: bytes, place: int) -> None:
    """Bytes written over a good manifest never raise anything else."""
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    text = json.dumps(manifest()).encode()
    (folder / "manifest.json").write_bytes(text[:place] + data + text[place + len(data) :])
    with contextlib.suppress(OpguardError):
        read_trace(folder)


def test_absent_keys_have_their_defaults(folder: Path) -> None:
    """Whoever reads `manifest` need not ask which keys are there."""
    document = json.loads((folder / "manifest.json").read_text())
    for key in ("argv", "coverage", "findings", "notes", "outcome", "last_operator"):
        del document[key]
    (folder / "manifest.json").write_text(json.dumps(document))
    found = read_trace(folder).manifest
    assert found["coverage"] == {"operators": 0, "hashed": 0, "unhashed": [], "unseen": []}
    assert (found["argv"], found["findings"], found["outcome"]) == ([], [], None)


def test_no_torch_is_needed(written: Path) -> None:
    """Reading imports neither torch nor git."""
    code = (
        "import sys; from opguard_ci.trace import query, reader, digest, writer;"
        "t = reader.read_trace(sys.argv[1]); print(query.render(query.show(t)));"
        "assert not {'torch', 'git'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, written], check=True, cwd=Path(__file__).parents[2])


def test_a_huge_sparse_event_file(folder: Path) -> None:
    """A terabyte of nothing is refused at its first bytes."""
    rewrite_manifest(folder, complete=False)
    with (folder / "events-0.arrows").open("r+b") as file:
        file.truncate(0)
        file.truncate(1 << 40)
    assert slug(folder) == "trace-damaged"


def test_sha256_of_a_complete_trace_is_that_of_its_file(written: Path) -> None:
    """The manifest's object is the file beside it."""
    entry = read_trace(written).manifest["objects"]["events-0.arrows"]
    assert entry["sha256"] == hashlib.sha256((written / "events-0.arrows").read_bytes()).hexdigest()
