"""A process that makes rows of a section: `python -m benchmarks.gpu.worker OPTIONS`; see `children`."""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.gpu.children import answer
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.setting import setting_of


def main(options: dict[str, Any]) -> None:
    """Answer `{"row": name}` with the row."""
    rows = dict(SECTIONS[options["section"]].rows(setting_of(options)))
    answer(lambda request: rows[request["row"]]())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
