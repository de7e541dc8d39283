"""Explanations: the placement of each operator, with the refusals of other backends."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._byoc import Model


class Explanation:
    """Placement of each operator of a model, available as a printed table, a notebook page, and plain data."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def data(self) -> dict[str, Any]:
        """Complete explanation as plain data, in the format of `byoc explain --json`."""
        return json.loads(self._model.explanation_json())

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Operators of the model, with their placement and the refusals of the other backends."""
        return self.data["nodes"]

    @property
    def regions(self) -> list[dict[str, Any]]:
        """Regions compiled by backends."""
        return self.data["regions"]

    @property
    def totals(self) -> dict[str, Any]:
        """Totals over all operators."""
        return self.data["totals"]

    def text(self, full: bool = False) -> str:
        """Returns the table; with `full`, each row includes the complete reasons."""
        return self._model.explanation_text(full).rstrip("\n")

    def page(self, title: str = "model") -> str:
        """Returns a self-contained HTML page."""
        return self._model.explanation_page(title)

    def save_html(self, path: Any, title: str = "model") -> None:
        """Writes a self-contained HTML page."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.page(title))

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _html(self.data)


def _html(data: dict[str, Any]) -> str:
    """Returns an HTML table without scripts, for display in notebooks."""
    from html import escape

    totals = data["totals"]
    colors = {"region": "#d9efdc", "host": "#f6e9cd", "folded": "#ececec"}
    head = (
        f"operators: {totals['operators']} ({totals['in_regions']} in regions, {totals['on_host']} on the host, "
        f"{totals['folded']} folded); regions: {totals['regions']}; "
        f"{100 * totals['offload_share']:.1f} % of {totals['flops']:,} FLOPs on backends"
    )
    rows = []
    for node in data["nodes"]:
        place = node["placement"]
        where = place.get("region") or (f"folded into {place['into']}" if place.get("into") else place["kind"])
        reasons = "<br>".join(
            escape(f"{refusal['backend']}: {refusal['detail']}" + (f" ({refusal['hint']})" if refusal["hint"] else ""))
            for refusal in node["refusals"]
        )
        color = colors.get(place["kind"], "")
        cells = [escape(node["op"]), escape(node["source"]), f"{node['flops']:,}", escape(where), reasons]
        aligned = (
            f'<td style="text-align:{"right" if column == 2 else "left"}">{cell}</td>'
            for column, cell in enumerate(cells)
        )
        rows.append(f'<tr style="background:{color};color:#111">{"".join(aligned)}</tr>')
    names = ("operator", "source", "FLOPs", "where", "why not elsewhere")
    header = "".join(f'<th style="text-align:left">{name}</th>' for name in names)
    return (
        f"<div><p>{escape(head)}</p>"
        f'<div style="max-height:30em;overflow:auto"><table><thead><tr>{header}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )
