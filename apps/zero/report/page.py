"""The page: one file of HTML with its style, its data and its scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from json_files import Refused, of_path
from markup import escaped
from sections import (
    course_section,
    headline,
    loss_section,
    memory_section,
    time_section,
    trace_section,
    traffic_section,
)
from settings_sections import environment_section, settings_section

SECTIONS: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
    ("loss-section", "Loss", loss_section),
    ("course-section", "Throughput, gradient norm, learning rate", course_section),
    ("time-section", "Time of a step", time_section),
    ("memory-section", "Memory", memory_section),
    ("trace-section", "Inside a step", trace_section),
    ("traffic-section", "Traffic", traffic_section),
    ("settings-section", "Configuration", settings_section),
    ("environment-section", "Environment", environment_section),
]


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise Refused("this needs the package plotly: pip install plotly") from None
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def beside_this(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def in_script(data: dict[str, Any]) -> str:
    """JSON that ends no element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_of(data: dict[str, Any], plotly: str) -> str:
    contents = [(name, title, write(data)) for name, title, write in SECTIONS]
    contents = [one for one in contents if one[2]]
    links = "".join(f'<a href="#{name}">{title.split(",")[0]}</a>' for name, title, _ in contents)
    sections = "".join(f'<section id="{name}"><h2>{title}</h2>{body}</section>' for name, title, body in contents)
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(data["title"])}</title>
<style>
{beside_this("page.css")}</style>
</head>
<body>
<p id="problem" hidden></p>
<header>
<h1>{escaped(data["title"])}</h1>
<nav class="screen">{links}</nav>
</header>
<main>
<noscript><p class="missing">The charts need JavaScript; the tables do not.</p></noscript>
<section id="headline">{headline(data)}</section>
{sections}
</main>
<footer>Made with zero report on {data["made_at"]}. Bytes are decimal: 1 MB is 10<sup>6</sup> bytes.</footer>
<script type="application/json" id="zerotorch-report">{in_script(data)}</script>
<script>
{beside_this("watch.js")}</script>
<script id="plotly">{plotly}</script>
<script>
{beside_this("page.js")}</script>
</body>
</html>
"""


def write_whole(path: Path, text: str) -> int:
    """Through a file beside it, so that nobody sees half a page. Returns its bytes."""
    if path.is_dir():
        raise Refused(f"--output {of_path(path)}: is a folder; name a file")
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        raise Refused(f"--output {of_path(path)}: is no regular file; name another")
    content = text.encode(errors="replace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as out:
            out.write(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Refused(f"--output {of_path(path)}: cannot be written: {error.strerror}; name another place") from None
    return len(content)
