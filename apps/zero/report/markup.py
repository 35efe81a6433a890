"""Pieces of HTML."""

from __future__ import annotations

import html
from typing import Any


def escaped(text: object) -> str:
    return html.escape(str(text), quote=True)


def swatch(run: dict[str, Any]) -> str:
    return f'<span class="swatch" style="background:{run["colour"]}"></span>'


def run_name(run: dict[str, Any]) -> str:
    return f'{swatch(run)}<span class="name">{escaped(run["name"])}</span>'


def said_of(run: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    """Before words on it: nothing where there is no other."""
    return "" if len(runs) == 1 else f"{escaped(run['name'])}: "


def table_row(cells: list[str], tag: str, numbers_from: int) -> str:
    kinds = [" class=number" if i >= numbers_from else "" for i in range(len(cells))]
    return "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells)) + "</tr>"


def table(head: list[str], rows: list[list[str]], numbers_from: int = 1, kind: str = "") -> str:
    """Of HTML. Columns from `numbers_from` on are numbers."""
    body = "".join(table_row(row, "td", numbers_from) for row in rows)
    top = f"<thead>{table_row(head, 'th', numbers_from)}</thead>"
    return f'<div class="wide"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def lacking(text: str) -> str:
    return f'<p class="missing">{text}</p>'


def missing(runs: list[dict[str, Any]], lack: list[dict[str, Any]], what: str, how: str) -> str:
    """`what` some runs have not, and how to get it."""
    if not lack:
        return ""
    who = "" if len(runs) == 1 else ", ".join(escaped(run["name"]) for run in lack) + ": "
    return lacking(f"{who}{what}. {how}")


def chart(name: str, height: int) -> str:
    """page.js draws into it."""
    return f'<div class="chart" id="{name}" style="height:{height}px"></div>'
