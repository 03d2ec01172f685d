"""What a run of the check has found so far: on disk, in every place that was asked for, after each row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass
class Record:
    """found: all that is written. paths: the JSON files; the tables go beside them. text: makes a table."""

    found: dict[str, Any]
    paths: Sequence[Path]
    text: Callable[[dict[str, Any]], str]
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.found.setdefault("sections", {})
        self.found["left_out"] = self.left_out
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)

    def put(self, section: str, row: Row) -> None:
        """Add a row, or put it in the place of the one with its name; and write."""
        rows = self.found["sections"].setdefault(section, [])
        names = [r["name"] for r in rows]
        if row["name"] in names:
            rows[names.index(row["name"])] = row
        else:
            rows.append(row)
        self.write()

    def skip(self, name: str) -> None:
        """Note a row that time ran out for."""
        self.left_out.append(name)

    def rows(self) -> list[Row]:
        """All rows."""
        return [row for rows in self.found["sections"].values() for row in rows]

    def write(self) -> None:
        """Write everything; a run that is killed meanwhile leaves what was there before."""
        whole = json.dumps(self.found, indent=1, ensure_ascii=False) + "\n"
        table = self.text(self.found)
        for path in self.paths:
            _replace(path, whole)
            _replace(path.with_suffix(".txt"), table)


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
