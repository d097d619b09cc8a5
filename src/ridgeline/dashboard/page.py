"""A page of one file: style, data, script and the plotting library inside it."""

from __future__ import annotations

import html
import json

LIGHT_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 20px 24px; max-width: 1240px;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 21px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 14px 0 4px; }
p { margin: 4px 0; } .muted { color: #555; }
.columns { display: grid; grid-template-columns: minmax(0, 7fr) minmax(0, 4fr); gap: 20px; }
.legend span.swatch { display: inline-block; width: 14px; height: 14px; margin: 0 5px 0 14px;
       vertical-align: -2px; border: 1px solid #777; }
ul { margin: 4px 0; padding-left: 18px; } li { margin: 1px 0; overflow-wrap: anywhere; }
.scroll { max-height: 340px; overflow-y: auto; border: 1px solid #ddd; padding: 4px 8px; }
button { font: inherit; padding: 3px 12px; } table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: right; padding: 3px 9px; border-bottom: 1px solid #ddd; } td:first-child,
th:first-child { text-align: left; }
@media (max-width: 800px) { .columns { grid-template-columns: minmax(0, 1fr); } }
"""

ADAPTIVE_STYLE = (
    LIGHT_STYLE
    + """
:root { color-scheme: light dark;
  --ink: #1a1a1a; --paper: #fff; --quiet: #555; --line: #ddd; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181c; --quiet: #a9adb4; --line: #3a3f47; --bad: #ff8a80; }
}
body { color: var(--ink); background: var(--paper); } .muted { color: var(--quiet); }
.scroll, th, td { border-color: var(--line); } .bad { color: var(--bad); font-weight: 600; }
h2 { margin-top: 26px; font-size: 16px; } .wide { overflow-x: auto; margin: 4px 0 10px; }
td:first-child { white-space: nowrap; } .words th, .words td, .word { text-align: left; }
.halves { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 8px 20px; }
@media (max-width: 800px) { .halves { grid-template-columns: minmax(0, 1fr); } }
"""
)
"""Light or dark as the reader's system is; plots take their colours from --ink and --line."""

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def html_page(title: str, body: str, script: str, data: object, *, style: str = LIGHT_STYLE) -> str:
    """The page's text; its own policy forbids the browser to load anything.

    `script` finds `data` under the name DATA and the library under Plotly.
    """
    from plotly.offline import get_plotlyjs

    # "</script>" inside a string would end the script; a backslash changes nothing for JSON.
    encoded = json.dumps(data, ensure_ascii=True, allow_nan=False).replace("</", "<\\/")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>\n<body>\n{body}\n"
        f"<script>{get_plotlyjs()}</script>\n<script>const DATA = {encoded};\n{script}</script>\n"
        f"</body></html>\n"
    )
