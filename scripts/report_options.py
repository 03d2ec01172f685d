"""The command line of scripts that run models and write a table of them into docs/."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path


def options_of(doc: str | None, out: Path) -> argparse.Namespace:
    """Parse `--only` and `--out`; warnings of the models are not shown from now on.

    Args:
        doc: the script's docstring.
        out: the default of `--out`.

    Returns:
        `only`, a part of the names of models, and `out`, the document to write.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--out", type=Path, default=out)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return options
