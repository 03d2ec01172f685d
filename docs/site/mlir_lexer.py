"""Colours for MLIR text."""

from __future__ import annotations

from typing import Any

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Punctuation, String, Text


class MlirLexer(RegexLexer):
    """Enough of MLIR to read it by."""

    name = "MLIR"
    aliases = ("mlir",)
    tokens = {  # noqa: RUF012
        "root": [
            (r"//.*?$", Comment.Single),
            (r'"(\\.|[^"\\])*"', String),
            (r"%[\w$.-]+(#\d+)?", Name.Variable),
            (r"@[\w$.-]+", Name.Function),
            (r"\^[\w$.-]+", Name.Label),
            (r"#[\w$.-]+", Name.Constant),
            (r"!?\b(tensor|vector|memref|array|dense|dense_resource)\b", Keyword.Type),
            (r"\b(index|none|[su]?i\d+|b?f\d+(E\w+)?)\b", Keyword.Type),
            (r"(?:\d+x)+(?=[a-z])", Number.Integer),
            (r"\b(module|func\.func|func\.return|return|loc|true|false)\b", Keyword),
            (r"-?\d+\.\d*([eE][-+]?\d+)?", Number.Float),
            (r"-?0x[0-9a-fA-F]+|-?\d+", Number.Integer),
            (r"[a-zA-Z_][\w.$]*", Name),
            (r"[{}()\[\]<>:,=*]|->", Punctuation),
            (r"\s+", Text),
            (r".", Text),
        ]
    }


def setup(app: Any) -> dict[str, bool]:
    app.add_lexer("mlir", MlirLexer)
    return {"parallel_read_safe": True}
