"""The runner of documentation: what it takes for a block, and that it sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import mlir_text
from tests.docs.blocks import blocks_of
from tests.docs.compare import difference
from tests.docs.run import Page, inside


def run(text: str, folder: Path) -> None:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    page = Page(folder)
    with inside(folder):
        for block in blocks_of(path):
            page.run(block)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nx\n```", "without a language"),
        ("```ruby\nx\n```", "'ruby'"),
        ("    x = 1\n", "indented"),
        ("<!-- not run: -->\n```\nx\n```", "no reason"),
        ("<!-- skip: me -->\n```\nx\n```", "marked 'skip'"),
        ("```python\nprint(1)\n```\n```text\n2\n```", "expected"),
        ("```text\n2\n```", "nothing was printed"),
        ("```sh\ncurl elsewhere\n```", "not a command of gflow"),
        ("```console\n$ echo a\nb\n```", "expected"),
        ("```console\n$ gflow-opt nowhere.mlir\n```", "exit status 1"),
        ('```mlir\n%0 = "gflow.exp"(%x) : (tensor<4xi32>) -> tensor<4xi32>\n```', "i32"),
    ],
)
def test_wrong_pages(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        run(text, tmp_path)


def test_a_page(tmp_path: Path) -> None:
    run(
        """
<!-- not run: nobody has it -->
```ruby
x
```

```python
x = 1.0 / 3
print("first", x)
```

```python
print("second", x + 1)
```

```text
second 1.3333
```

```mlir
%0 = "gflow.add"(%x, %c) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
%1 = "gflow.add"(%x, %c) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
```

After `cse`:

```mlir
%0 = "gflow.add"(%x, %c) : …
```
""",
        tmp_path,
    )


def test_output() -> None:
    printed = "a\n  loss 0.33333, 2 steps\n\nb …\nend\n"
    assert difference("loss 0.33334, 2 steps", printed) is None
    assert difference("a\n…\nend", printed) is None
    assert difference("loss …, 2 steps\nb ...", printed) is None
    for wrong in ("loss 0.3343, 2 steps", "loss 0.33333, 3 steps", "a\nb …", "loss 0.33333"):
        assert difference(wrong, printed) is not None, wrong


def test_ir() -> None:
    printed = """module {
  func.func @example(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "gflow.exp"(%arg1) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "gflow.add"(%0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
"""
    good = '%e = "gflow.exp"(%y) : …\n%s = "gflow.add"(%e, %x) : …'
    names = ["%x", "%y"]
    assert mlir_text.difference(good, names, printed) is None
    assert mlir_text.difference(good.replace("(%e, %x)", "(%x, %e)"), names, printed)
    assert mlir_text.difference(good.replace("(%y)", "(%x)"), names, printed)
    assert mlir_text.difference(good.replace("(%y)", "(%z)"), names, printed)
    assert mlir_text.difference(good.splitlines()[0], names, printed)


def test_wrapping() -> None:
    text = """
%0:2 = "gflow.aten"(%x) {overload = "aten.topk.default"} : (tensor<4x8xf32>) -> (tensor<4x2xf32>, tensor<4x2xi64>)
%1 = "gflow.fused"(%0#0) ({
^bb0(%a: tensor<4x2xf32>):
  "gflow.yield"(%a) : (tensor<4x2xf32>) -> ()
}) {kind = "pointwise"} : (tensor<4x2xf32>) -> tensor<4x2xf32>
"""
    wrapped = mlir_text.wrap(text)
    assert wrapped.startswith("func.func @example(%x: tensor<4x8xf32>) -> (tensor<4x2xf32>) {")
    assert mlir_text.arguments(text) == ["%x"]
    assert "return %1 : tensor<4x2xf32>" in wrapped
