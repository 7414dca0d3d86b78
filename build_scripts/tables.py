"""A table for the terminal, and the same one in a page of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.table import Table


class Grid(NamedTuple):
    """Text cells; the first column names the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def rich(self) -> Table:
        table = Table(title=self.title)
        for i, name in enumerate(self.columns):
            table.add_column(name, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end -->`. Raises ValueError where the page lacks them."""
    before, begin, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not end:
        raise ValueError(f"'{page}' has no section '{name}'")
    page.write_text(f"{before}{begin}{text}{end}{after}")
