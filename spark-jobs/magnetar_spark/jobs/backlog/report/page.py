"""The elements of the report's page: style, tiles, sections, tables.

The page is one file without external resources. Its content security policy forbids a browser to
load or run anything. It is well-formed XML, and follows the system's light or dark mode. All text
is escaped here; parameters that are markup say so.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

STYLE: Final = """
:root { color-scheme: light dark;
  --page: #f6f6f3; --card: #ffffff; --ink: #16181d; --soft: #5b6069; --line: #dfe0dc;
  --c0: #2a78d6; --c1: #d9780b; --c2: #128a63; --c3: #8a5bd1; --c4: #c93b55; --c5: #0f8fa3;
  --c6: #8f7a16; --c7: #b24f9c; --other: #9a9da3;
  --bad: #b3261e; --warn: #9a5b00; --note: #2a62ad; }
@media (prefers-color-scheme: dark) { :root {
  --page: #15171b; --card: #1d2026; --ink: #e9eaec; --soft: #a3a8b1; --line: #343942;
  --c0: #5b9df0; --c1: #eb9a45; --c2: #45b890; --c3: #ae8bee; --c4: #ee7488; --c5: #49b9cc;
  --c6: #c3ac49; --c7: #d984c5; --other: #7b808a;
  --bad: #ff8a80; --warn: #f0b35a; --note: #8ab8f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 0 0 4px; }
h3 { font-size: 15px; margin: 18px 0 4px; }
.soft, .legend, caption { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 18px 20px; margin-top: 18px; }
section > p { margin: 4px 0 10px; max-width: 75ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(124px, 1fr)); gap: 12px;
  margin-top: 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px; }
.tile b { display: block; font-size: 20px; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.findings { list-style: none; margin: 8px 0 0; padding: 0; }
.findings li { border-left: 4px solid var(--note); padding: 4px 12px; margin: 10px 0; }
.findings li.critical { border-color: var(--bad); }
.findings li.warning { border-color: var(--warn); }
summary { cursor: pointer; color: var(--soft); }
.tag { font-size: 12px; font-weight: 600; text-transform: uppercase; letter-spacing: .04em;
  color: var(--note); }
.critical .tag { color: var(--bad); } .warning .tag { color: var(--warn); }
.name { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 13px;
  overflow-wrap: anywhere; }
.chart, .scroll { overflow-x: auto; }
.chart svg { display: block; width: 100%; min-width: 640px; height: auto; }
svg text { font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg text.tick, svg text.value { fill: var(--soft); }
svg .axis { stroke: var(--soft); stroke-width: 1; } svg .grid { stroke: var(--line); }
.s0 { fill: var(--c0); } .s1 { fill: var(--c1); } .s2 { fill: var(--c2); } .s3 { fill: var(--c3); }
.s4 { fill: var(--c4); } .s5 { fill: var(--c5); } .s6 { fill: var(--c6); } .s7 { fill: var(--c7); }
.other { fill: var(--other); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; margin: 6px 0; }
.key { display: inline-flex; align-items: center; gap: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin-top: 10px; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); }
th, td { padding: 5px 10px 5px 0; vertical-align: top; }
td { border-bottom: 1px solid var(--line); } th { vertical-align: bottom; }
td.name { min-width: 9em; } td.name:first-child { min-width: 17em; }
.n { text-align: right; font-variant-numeric: tabular-nums; } td.n { white-space: nowrap; }
"""

Cell = str | tuple[str, str]
"""Text, or a class with its text (`n`: a number, `name`: a name)."""


def tile(value: str, name: str) -> str:
    """A tile with one number."""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'


def section(title: str, text: str, *parts: str) -> str:
    """A card. `parts` are markup."""
    paragraph = f'<p class="soft">{escape(text)}</p>' if text else ""
    return f"<section><h2>{escape(title)}</h2>{paragraph}{''.join(parts)}</section>"


def table(heads: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
    """A table; nothing without rows."""
    if not rows:
        return ""
    head = "".join(_cell("th", cell) for cell in heads)
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(tag: str, cell: Cell) -> str:
    if isinstance(cell, str):
        return f"<{tag}>{escape(cell)}</{tag}>"
    css, text = cell
    return f'<{tag} class="{css}">{escape(text)}</{tag}>'


def document(title: str, body: str) -> str:
    """The whole page. `body` is markup."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )
