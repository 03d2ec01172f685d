"""Runs the code blocks of README.md and docs/.

What a block is, its language says:

- `python` runs, in one namespace and one empty directory for each page;
- `mlir` is parsed and verified by gflow-opt. Loose ops get a function around them. After a paragraph
  that begins with "After", the block is what the pass of the paragraph (or of the heading) makes of the
  block before it;
- `sh` runs, where the commands are gflow's; `console` shows them with `$` and what they print;
- `text` is a part of what the block before it printed.

In output `…` and `...` stand for anything, and fractions may differ in the fourth digit. A block that
does not run is marked with the reason: `<!-- not run: needs a GPU -->` before it. A block without a
language, and one of another, is an error.
"""
