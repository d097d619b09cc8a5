"""A page of one file: style, data, script and the plotting library inside it."""

from __future__ import annotations

import html
import json

_STYLE = """
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


def html_page(title: str, body: str, script: str, data: object) -> str:
    """The page's text. `script` finds `data` under the name DATA and the library under Plotly."""
    from plotly.offline import get_plotlyjs

    # "</script>" inside a string would end the script; a backslash changes nothing for JSON.
    encoded = json.dumps(data, ensure_ascii=True, allow_nan=False).replace("</", "<\\/")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        f"<script>{get_plotlyjs()}</script>\n<script>const DATA = {encoded};\n{script}</script>\n"
        f"</body></html>\n"
    )
