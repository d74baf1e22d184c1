"""One report.html that needs nothing beside it: styles, tables and figures are in it."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from results.figures import Drawn, Omitted
from results.tables import Table

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto;
  max-width: 1440px; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem;
  border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
nav a { margin-right: 1rem; } a { color: #0059a8; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .82rem; min-width: 60%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .55rem;
  border-bottom: 1px solid #e3e3e3; }
th { border-bottom: 2px solid #888; background: #f6f6f6; }
td.n { font-variant-numeric: tabular-nums; }
td.on { min-width: 9rem; color: #444; }
figure { margin: 0 0 2rem; } img { max-width: 100%; height: auto; display: block; }
figcaption, .note { color: #333; font-size: .88rem; max-width: 75ch; }
code, pre { font: .8rem/1.4 ui-monospace, monospace; background: #f4f4f4; }
pre { padding: .6rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.virtual { border: 3px solid #a00; color: #a00; font-weight: bold; padding: .6rem; margin: 1rem 0; }
.warning { border-left: 4px solid #c60; padding-left: .7rem; margin: .3rem 0; }
@media print { nav { display: none; } table { font-size: .55rem; }
  figure, table { break-inside: avoid; } }
"""


def page(
    title: str,
    tables: Sequence[Table],
    drawn: Sequence[Drawn],
    omitted: Sequence[Omitted],
    *,
    virtual: bool,
    warnings: Sequence[str],
    under_way: Sequence[Mapping[str, Any]],
    manifest: Mapping[str, Any],
    refresh_s: float | None = None,
) -> str:
    """The whole document. `refresh_s`: the page loads itself again that often."""
    again = f'<meta http-equiv="refresh" content="{refresh_s:g}">' if refresh_s else ""
    parts = [
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_text(title)}</h1>",
        f'<p class="note">{_text(manifest["created"])}; {len(manifest["runs"])} runs from '
        f"{_text(manifest['source'])}. Made by <code>{_text(manifest['command'])}</code></p>",
        '<nav><a href="#tables">Tables</a><a href="#figures">Figures</a>'
        '<a href="#runs">Runs</a><a href="#manifest">Manifest</a></nav>',
    ]
    if virtual:
        parts.append(
            '<p class="virtual">VIRTUAL TIME: simulated runs. No figure that says VIRTUAL was '
            "measured.</p>"
        )
    parts += [f'<p class="warning">{_text(line)}</p>' for line in warnings]
    if under_way:
        parts += ["<h2>Under way</h2>", _records(under_way)]
    parts.append('<h2 id="tables">Tables</h2>')
    parts += [_table(table) for table in tables]
    parts.append('<h2 id="figures">Figures</h2>')
    parts += [_figure(figure) for figure in drawn]
    if omitted:
        parts.append("<h3>Not drawn</h3><ul>")
        parts += [f"<li>{_text(o.title)}: {_text(o.why)}</li>" for o in omitted]
        parts.append("</ul>")
    parts += ['<h2 id="runs">Runs</h2>', _records(manifest["runs"])]
    if manifest["left_out"]:
        parts.append("<h3>Left out</h3><ul>")
        parts += [f"<li>{_text(line)}</li>" for line in manifest["left_out"]]
        parts.append("</ul>")
    text = json.dumps(manifest, indent=1)
    parts.append(
        '<h2 id="manifest">Manifest</h2><details><summary>report.json</summary>'
        f"<pre>{_text(text)}</pre></details></body></html>\n"
    )
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in table.columns)
    body = []
    for row in table.rows:
        cells = []
        for column, cell in zip(table.columns, row, strict=True):
            kind = "on" if column == "ran on" else "n" if isinstance(cell.value, float) else ""
            cells.append(f'<td class="{kind}">{_text(cell.text)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in table.notes)
    return (
        f'<h3 id="{table.key}">{_text(table.title)}</h3><div class="wide"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>{notes}"
    )


def _figure(figure: Drawn) -> str:
    png = base64.b64encode(figure.files[0].read_bytes()).decode("ascii")
    return (
        f'<figure id="{figure.key}"><h3>{_text(figure.title)}</h3>'
        f'<img alt="{_text(figure.title)}" src="data:image/png;base64,{png}">'
        f"<figcaption>{_text(figure.caption)}</figcaption>"
        f"<pre>{_text(figure.command)}</pre></figure>"
    )


def _records(records: Sequence[Mapping[str, Any]]) -> str:
    columns = list(records[0]) if records else []
    head = "".join(f'<th scope="col">{_text(c)}</th>' for c in columns)
    rows = (
        "".join(f"<td>{_text('-' if r[c] is None else str(r[c]))}</td>" for c in columns)
        for r in records
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    rest = f"<tbody>{body}</tbody></table></div>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>{rest}'


def _text(text: str) -> str:
    return html.escape(str(text), quote=True)
