"""Turns the answers of `opguard show` into text for a person. Pure."""

from __future__ import annotations

from typing import Any


def render(answer: dict[str, Any]) -> str:
    """An answer of ``query.show`` as lines of text. What a trace holds is printed without control characters."""
    lines = _events(answer) if "matches" in answer else _summary(answer)
    return "\n".join(map(_printable, lines)) + "\n"


def _events(answer: dict[str, Any]) -> list[str]:
    shown, matches, total = len(answer["events"]), answer["matches"], answer["events_in_trace"]
    lines = [f"{answer['trace']}: {shown} of {matches} matching events ({total} in the trace)"]
    for event in answer["events"]:
        lines += _event(event)
    if answer["next"] is not None:
        lines += ["", f"{answer['more']} more match; go on with:", f"  {answer['next']}"]
    return lines


def _event(event: dict[str, Any]) -> list[str]:
    lane = f"  lane {event['lane']}" if event["lane"] else ""
    flags = f"  [{', '.join(event['flags'])}]" if event["flags"] else ""
    kind = "" if event["kind"] == "op" else f"  ({event['kind']})"
    module = f"  in {event['module']}" if event["module"] is not None else ""
    lines = ["", f"#{event['index']}  step {event['step']} {event['phase']}{lane}  {event['op']}{kind}{module}{flags}"]
    if event["args"]:
        lines.append(f"    {event['args']}")
    if event["key"] is not None:
        lines.append(f"    key {event['key']}")
    lines += [f"    {_frame(frame)}" for frame in event.get("stack") or [event["frame"]] if frame is not None]
    for number, read in enumerate(event.get("reads", ())):
        writers = ", ".join("outside" if writer < 0 else f"#{writer}" for writer in read["writers"])
        lines.append(_tensor(f"read {number}", read) + (f"  from {writers}" if writers else ""))
    for write in event.get("writes", ()):
        name = f"output {write['output']}" if write["read"] is None else f"into read {write['read']}"
        lines.append(_tensor(name, write))
    for name, count in event.get("left_out", {}).items():
        if count:
            lines.append(f"    … and {count} more {name}")
    draw = event.get("draw")
    if draw is not None:
        lines.append(f"    generator {draw['generator']}: state {draw['before']} -> {draw['after']}")
    return lines


def _tensor(name: str, tensor: dict[str, Any]) -> str:
    flags = f"  [{', '.join(tensor['flags'])}]" if tensor["flags"] else ""
    return f"    {name:<12}{tensor['value'] or '(no value)':<16}  {tensor['spec']}{flags}"


def _frame(frame: dict[str, Any]) -> str:
    return f"{frame['file']}:{frame['line']} {frame['function']}  {frame['source']}"


def _summary(answer: dict[str, Any]) -> list[str]:
    left_out, coverage, outcome = answer["left_out"], answer["coverage"], answer["outcome"] or {}
    arguments = " ".join(answer["argv"])
    lines = [
        f"{answer['trace']}: {answer['target']}{' -- ' + arguments if arguments else ''}",
        f"  commit       {answer['commit'] or 'none'}",
        f"  environment  {answer['environment']}",
        f"  profile      {answer['profile']}, level {answer['level']}, scheme {answer['scheme']}",
        f"  ranks        {answer['ranks']}, this is rank {answer['rank']}",
        f"  complete     {'yes' if answer['complete'] else 'no, the run did not get to its end'}",
    ]
    if outcome:
        words = [str(outcome[key]) for key in ("status", "slug", "message") if outcome.get(key)]
        lines.append(f"  outcome      {', '.join(words)}")
    if not answer["complete"] and answer["last_operator"]:
        lines.append(f"  last operator begun: {answer['last_operator']}")
    lines.append(f"  coverage     {coverage['hashed']} of {coverage['operators']} operators hashed")
    for name in ("unhashed", "unseen"):
        lines += [f"    {name}: {item}" for item in coverage[name]] + _more(left_out, name)
    lines.append(
        f"  steps        {len(answer['steps']) + left_out.get('steps', 0)}, {answer['events_in_trace']} events"
    )
    for step in answer["steps"]:
        if "first" in step and step["events"]:
            numbers = f"  #{step['first']}..{step['first'] + step['events'] - 1}"
        else:
            numbers = ""
        lines.append(f"    step {step['step']}: {step['events']} events{numbers}")
    lines += _more(left_out, "steps")
    if answer["operators"]:
        lines.append("  operators")
        lines += [f"    {entry['count']:>8}  {entry['op']}" for entry in answer["operators"]]
        lines += _more(left_out, "operators")
    for name in ("findings", "notes"):
        if answer[name]:
            lines.append(f"  {name}")
            lines += [f"    {_finding(item)}" for item in answer[name]] + _more(left_out, name)
    if answer["unreadable"]:
        lines.append(f"  {answer['unreadable']}")
    if answer["next"]:
        lines += ["", "look at events with:", f"  {answer['next']}"]
    return lines


def _more(left_out: dict[str, int], name: str) -> list[str]:
    return [f"    … and {left_out[name]} more {name}"] if name in left_out else []


def _finding(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    place = [f"step {item['step']}"] if "step" in item else []
    return ", ".join(place + [str(item[key]) for key in ("phase", "op", "module", "cause", "detail") if item.get(key)])


def _printable(line: str) -> str:
    """Without what could drive a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in line[:4000])
