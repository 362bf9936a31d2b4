"""The text of a reproducer: what stands in it whatever the operator. People without opguard_ci read and run it."""

from __future__ import annotations

from typing import Final

SCRIPT: Final = '''\
"""{title}

{about}
Needs torch alone: python repro.py
"""

import json
from pathlib import Path

import torch

HERE = Path(__file__).parent

# Per call: threads of an operator, and whether deterministic algorithms were asked for.
{settings}

# Per call: dtype, shape, stride, offset from a multiple of 64 bytes, and device of each tensor.
TENSORS = json.loads(r"""
{tensors}
""")

{calls}

def load(file):
    """The tensors of a safetensors file as bytes."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    head.pop("__metadata__", None)
    found = {{}}
    for name, about in head.items():
        begin, end = about["data_offsets"]
        piece = bytearray(data[8 + size + begin : 8 + size + end])
        found[name] = torch.frombuffer(piece, dtype=torch.uint8) if piece else torch.empty(0, dtype=torch.uint8)
    return found


def tensor(data, about):
    """Bytes as the tensor that they were: its dtype, its strides, its place in memory."""
    dtype, shape, stride = getattr(torch, about["dtype"]), about["shape"], about["stride"]
    plain = data.view(dtype).reshape(shape)
    if not plain.numel():
        return torch.empty_strided(shape, stride, dtype=dtype, device=about["device"])
    for axis, step in enumerate(stride):  # of an expanded axis there is one
        plain = plain.narrow(axis, 0, 1) if step == 0 else plain
    span = 1 + sum((length - 1) * step for length, step in zip(plain.shape, stride))
    begin = about["align"] if about["align"] % dtype.itemsize == 0 else 0
    memory = torch.empty(span * dtype.itemsize + 64, dtype=torch.uint8, device=about["device"])
    made = memory[begin : begin + span * dtype.itemsize].view(dtype).as_strided(plain.shape, stride)
    made.copy_(plain)
    return made.expand(shape) if list(plain.shape) != shape else made


def contents(side, when):
    """A side's recorded tensors as bytes, by name."""
    file = HERE / f"{{side}}-{{when}}.safetensors"
    return load(file) if file.exists() else {{}}


def run(side):
    """What this machine gives for a side's call, as bytes by name."""
    torch.set_num_threads(SETTINGS[side]["threads"])
    torch.use_deterministic_algorithms(SETTINGS[side]["deterministic"])
    torch.utils.deterministic.fill_uninitialized_memory = False
    about = TENSORS[side]
    t = {{name: tensor(data, about[name]) for name, data in contents(side, "before").items() if name != "generator"}}
    state = contents(side, "before").get("generator")
    generator = torch.Generator(device=about["generator"]["for"]) if state is not None else None
    if state is not None:
        generator.set_state(state)
        if about["generator"]["for"] == "cpu":
            torch.default_generator.set_state(state)
        else:
            torch.cuda.set_rng_state(state)
    with torch.no_grad():
        result = CALLS[side](t, generator)
    outputs = list(flat(result))
    names = contents(side, "after")
    now = {{name: outputs[int(name.split()[1])] if name.startswith("output") else t[name.replace("written", "input")]
           for name in names}}
    return {{name: raw(value) for name, value in now.items()}}


def flat(result):
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from flat(part)
    else:
        yield result


def raw(value):
    return value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)


def compare(one, other, about):
    """How two results differ, in words."""
    if one.numel() != other.numel():
        return "other sizes"
    dtype = getattr(torch, about["dtype"])
    different = (one.view(-1, dtype.itemsize) != other.view(-1, dtype.itemsize)).any(1)
    if not different.any():
        return "equal, bit by bit"
    words = f"{{int(different.sum())}} of {{different.numel()}} elements differ"
    if dtype.is_floating_point:
        a, b = (value.view(dtype).double() for value in (one, other))
        first = int(different.nonzero()[0])
        words += f", at most by {{float((a - b).abs().nan_to_num(0).max()):.6g}}"
        words += f"; first {{a[first]:.9g}} and {{b[first]:.9g}}"
    return words


def main():
    capability = torch.backends.cpu.get_cpu_capability()
    threads = " and ".join(str(n) for n in dict.fromkeys(settings["threads"] for settings in SETTINGS.values()))
    print(f"torch {{torch.__version__}}, {{threads}} threads, CPU {{capability}}")
    recorded = {{side: contents(side, "after") for side in CALLS}}
    now = {{side: run(side) for side in CALLS}}
    for name in dict.fromkeys(name for results in recorded.values() for name in results):
        sides = [side for side in CALLS if name in recorded[side]]
        about = TENSORS[sides[-1]][name]
        print(f"{{name}}: {{about['dtype']}}{{about['shape']}}")
        if len(sides) == 2:
            both = [recorded[side][name] for side in sides]
            print("  recorded, reference and candidate:", compare(*both, about))
        for side in sides:
            print(f"  the {{side}}'s call here, and recorded:", compare(now[side][name], recorded[side][name], about))


main()
'''
