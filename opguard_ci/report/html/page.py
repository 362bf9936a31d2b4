"""The page around a report: one file that needs nothing else, neither network nor scripts. Pure."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from opguard_ci.report.html.build import Content, Html, el, join

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Whatever a name might smuggle in, a browser loads and runs nothing."""


def page(title: str, *content: Content) -> str:
    """A whole document."""
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    head = join(
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="generator" content="opguard_ci">'),
        Html('<meta name="color-scheme" content="light dark">'),
        el("title", title),
        Html(f"<style>\n{style}</style>"),
    )
    footer = el("footer", "Made by opguard_ci. This file needs no network and runs no script.")
    return f"<!DOCTYPE html>\n{el('html', el('head', head), el('body', el('main', *content), footer), lang='en')}\n"
