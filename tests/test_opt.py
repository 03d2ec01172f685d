# ruff: noqa: E501  (expected messages stand whole)
"""gflow-opt: flags, exit codes and messages, on input of every kind."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gflow.compiler.tools.opt import main

GOOD = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.add"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Tool:
    """Runs gflow-opt in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *args: str, stdin: bytes | str = b"") -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(list(args))
        captured = self.capsys.readouterr()
        assert "Traceback" not in captured.err
        assert "internal error" not in captured.err
        return Result(code, captured.out, captured.err)


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tool:
    return Tool(capsys, monkeypatch)


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.mlir"
    path.write_text(GOOD)
    return str(path)


def test_reads_files_and_stdin_alike(tool: Tool, good: str) -> None:
    from_file, from_stdin = tool(good), tool("-", stdin=GOOD)
    assert from_file.code == from_stdin.code == 0
    assert from_file.out == from_stdin.out == tool(stdin=GOOD).out
    assert from_file.out.startswith("module {\n  func.func @f(")
    assert tool("-", stdin=from_file.out).out == from_file.out


def test_passes_run_in_the_order_of_the_flags(tool: Tool, good: str) -> None:
    result = tool(good, "--canonicalize={max-iterations=2}", "--cse", "--dump-pass-pipeline")
    assert "any(canonicalize{max-iterations=2},cse)" in result.err
    assert result.out.count("gflow.exp") == 1
    same = tool(good, "--pass-pipeline=builtin.module(func.func(canonicalize,cse))")
    assert same.out == result.out


def test_writes_output_only_when_all_went_well(tool: Tool, good: str, tmp_path: Path) -> None:
    target = tmp_path / "out.mlir"
    assert tool(good, "--cse", "-o", str(target)).out == ""
    assert target.read_text() == tool(good, "--cse").out
    target.unlink()
    assert tool("-", "-o", str(target), stdin="nonsense").code == 1
    assert not target.exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cze"], "Unknown command line argument '--cze'.  Try: 'gflow-opt --help'\ngflow-opt: Did you mean '--cse'?"),
        (["--pass-pipelin=x"], "Did you mean '--pass-pipeline'?"),
        (["a", "b"], "Too many positional arguments specified!"),
        (["--cse", "--pass-pipeline=any(cse)"], "cannot be used together"),
        (["-o"], "requires a value!"),
        (["--verify-each=maybe"], "'maybe' is invalid value for boolean argument!"),
        (["--mlir-elide-elementsattrs-if-larger=x"], "'x' value invalid for integer argument!"),
        (["--pipeline-for=gpu9"], "no pipeline for target 'gpu9'"),
        (["--pass-pipeline=cse"], "expected pass pipeline to be wrapped with the anchor operation type"),
        (["--pass-pipeline="], "expected pass pipeline to be wrapped"),
        (["--pass-pipeline=any(cse"], "expected ',' or ')' in the pass pipeline"),
        (["--pass-pipeline=any(cse{a=1)"], "missing closing '}' of the pass options"),
        (["--pass-pipeline=any(,)"], "expected the name of a pass"),
        (["--pass-pipeline=any(cse))"], "unexpected text after the pipeline"),
        (["--pass-pipeline=any(gflow-simplfy)"], "did you mean 'gflow-simplify'?"),
        (["--gflow-simplify=foo=1"], "pass 'gflow-simplify' has no option 'foo'; it has no options"),
        (["--gflow-fuse=max-opps=1"], "has no option 'max-opps'; did you mean 'max-ops'?"),
        (["--gflow-fuse=max-ops=many"], "option 'max-ops' of pass 'gflow-fuse' takes an integer, found 'many'"),
        (["--cse=foo=1"], "pass 'cse': no such option foo"),
        (["--pass-pipeline=" + "any(" * 5000], "pipelines nest at most"),
        (["-o", "/nonexistent/file"], "cannot open output file '/nonexistent/file': No such file or directory"),
        (["-o", "/"], "cannot open output file '/': Is a directory"),
        (["/"], "cannot open input file '/': Is a directory"),
        (["missing.mlir"], "cannot open input file 'missing.mlir': No such file or directory"),
        (["nul\0name"], "cannot open input file"),
    ],
)  # fmt: skip
def test_wrong_command_lines(tool: Tool, args: list[str], message: str) -> None:
    result = tool(*args)
    assert result.code == 1
    assert message in result.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "<stdin>:1:1: error: the input is not UTF-8 text: byte 0xff"),
        (b"module {\n  \x80}", "<stdin>:2:3: error: the input is not UTF-8 text"),
        (b"ML\xefR\x00", "holds MLIR bytecode; only MLIR text is read"),
        (b"module {", "error: expected"),
        (GOOD[:-20].encode(), "<stdin>:5:"),
        (b"func.func @f() {", "error: expected"),
        (b"%0 = ", "error: expected"),
        (b'"gflow.nothing"() : () -> ()', "unregistered operation 'gflow.nothing' found in dialect"),
        (b"func.func @f() { return }\nfunc.func @f() { return }", "redefinition of symbol named 'f'"),
        (b"(" * 5000, "brackets nest more than 2000 deep"),
        (b"module {" * 5000, "brackets nest more than 2000 deep"),
        (b"func.func @f(%a: " + b"tuple<" * 1900 + b"i1" + b">" * 1900 + b") { return }", ""),
        (b"module {" * 1900 + b"}" * 1900, ""),
        (b'module attributes {a = "\\E2\\82\\AC"} {}', ""),
        (b'module attributes {a = "\\E2\\82"} {}', "<stdin>:1:24: error: a string is not UTF-8"),
        (b'module @"\\FF" {}', "a string is not UTF-8"),
        (b'module @"' + b"\\22" * 4_194_305 + b'" {}', "1:10: error: the text has more than 4,194,304 escaped"),
        (b"func.func @f(%x: tensor<4xf32>) {\n  %0 = gflow.abs %x : tensor<4xf32>", "<stdin>:2:"),
        (b"func @f(%x: 4xf32) {\n  %0 = gflow.abz %x : 4xf32", "<stdin>:2:1: error: unknown op gflow.abz; did you mean gflow.abs?"),
        (b"\0\0\0", ""),
        (b"// only a comment", ""),
        (b"", ""),
    ],
)  # fmt: skip
def test_input_of_every_kind(tool: Tool, text: bytes, message: str) -> None:
    result = tool(stdin=text)
    assert result.code == (1 if message else result.code)
    assert message in result.err


def test_diagnostics_show_the_line(tool: Tool) -> None:
    text = GOOD.replace(
        '%1 = "gflow.exp"(%x) : (tensor<4xf32>)', '%1 =\t"gflow.exp"(%y) : (tensor<4xf32>)'
    )
    result = tool(stdin=text)
    assert result.err.splitlines()[0] == "<stdin>:3:20: error: use of undeclared SSA value name"
    line, caret = result.err.splitlines()[1:3]
    assert line[caret.index("^")] == "%"


def test_diagnostics_in_the_users_source(tool: Tool, tmp_path: Path) -> None:
    """Operations that come from Python point into the Python file."""
    source = tmp_path / "model.py"
    source.write_text("import torch\ny = torch.add(x, z)\n")
    text = (
        "func.func @f(%x: tensor<4xf32>) {\n"
        '  %0 = "gflow.abs"(%x) : (tensor<4xf32>) -> tensor<5xf32> '
        f'loc("forward:model.layer"("{source}":2:5))\n  return\n}}'
    )
    assert f"{source}:2:5: error: 'gflow.abs' op result #0 must be" in tool(stdin=text).err
    assert "y = torch.add(x, z)\n    ^" in tool(stdin=text).err


def test_split_input(tool: Tool) -> None:
    text = f"{GOOD}// -----\n{GOOD.replace('%1)', '%9)')}// -----\n{GOOD}"
    whole = tool(stdin=text)
    assert whole.code == 1
    result = tool("--split-input-file", "--cse", stdin=text)
    assert result.code == 1
    assert result.out.count("// -----\n") == 2
    assert result.out.count("func.func @f") == 2
    assert "<stdin>:11:" in result.err


def test_lines_of_parts(tool: Tool) -> None:
    """Each part is parsed alone, and its errors have the lines of the whole input."""
    assembly = "func @f(%arg0: 4xf32) -> (4xf32) {\n  %0 = gflow.nothing %arg0 : 4xf32\n  return %0 : 4xf32\n}\n"
    shape = "x".join("1" for _ in range(70_000))
    text = f"{GOOD}// -----\n{assembly}// -----\nfunc.func @g(%a: tensor<{shape}xf32>) {{\n}}\n"
    result = tool("--split-input-file", stdin=text)
    lines = text.splitlines()
    op = next(n for n, line in enumerate(lines, 1) if "gflow.nothing" in line)
    assert f"<stdin>:{op}:" in result.err
    assert f"<stdin>:{len(lines) - 1}:" in result.err
    many = tool("--split-input-file", stdin="// -----\n" * 30_000)
    assert (many.code, many.out) == (1, "")
    assert "its parts, each with the lines before it, have more than" in many.err


def test_verify_diagnostics(tool: Tool) -> None:
    def run(comment: str) -> Result:
        text = (
            f"func.func @f(%a: tensor<4xf32>) -> i32 {{\n{comment}\n  return %a : tensor<4xf32>\n}}"
        )
        return tool("--verify-diagnostics", stdin=text)

    assert run("  // expected-error @+1 {{type of return operand 0}}").code == 0
    assert run("  // expected-error@below {{type of}}").code == 0
    assert run("  // expected-error-re@+1 {{type of {{.*}} operand {{[0-9]+}}}}").code == 0
    assert run("  // expected-error@+2 {{type of}}").code == 1
    assert "was not produced" in run("  // expected-error@+1 {{something else}}").err
    assert "unexpected error" in run("").err
    assert "expecting a 'warning'" in run("  // expected-warning@+1 {{type of}}").err
    assert "invalid regular expression" in run("  // expected-error-re@+1 {{a{{(}}}}").err
    assert "no matching '}}'" in run("  // expected-error-re@+1 {{a{{b}}").err
    unknown = 'module {\n  // expected-error @unknown {{must be}}\n  %a = "gflow.iota"() {dim = 0 : i64, dtype = "i64", shape = array<i64: 2>} : () -> tensor<3xi64> loc(unknown)\n}'
    assert tool("--verify-diagnostics", stdin=unknown).code == 0


def test_a_pass_that_breaks_the_ir_is_named(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    from gflow.compiler.driver import pass_manager
    from gflow.compiler.ir.errors import PassError
    from gflow.compiler.passes.base import Pass
    from gflow.dialects.mlir import ir

    def run(function, options):  # type: ignore[no-untyped-def]
        op = function.regions[0].blocks[0].operations[0]
        raise PassError("cannot do this here", op)

    def break_it(function, options):  # type: ignore[no-untyped-def]
        op = function.regions[0].blocks[0].operations[0]
        op.operation.results[0].set_type(ir.RankedTensorType.get([5], ir.F32Type.get()))

    passes = {
        **pass_manager.our_passes(),
        "x-fail": Pass("x-fail", run),
        "x-break": Pass("x-break", break_it),
    }
    monkeypatch.setattr(pass_manager, "our_passes", lambda: passes)
    result = tool("--pass-pipeline=builtin.module(func.func(x-fail))", stdin=GOOD)
    assert result.code == 1
    assert '<stdin>:2:8: error: cannot do this here\n  %0 = "gflow.exp"' in result.err
    result = tool("--pass-pipeline=any(x-break,cse)", "--mlir-print-ir-after-all", stdin=GOOD)
    assert result.code == 1
    assert "IR Dump After x-break Failed" in result.err
    assert "result #0 must be tensor<4xf32>, found tensor<5xf32>" in result.err


def test_information(tool: Tool) -> None:
    text = tool("--help").out
    for flag in (
        "--pass-pipeline",
        "--split-input-file",
        "--verify-diagnostics",
        "--gflow-simplify",
    ):
        assert flag in text
    listed = tool("--list-passes").out
    assert "--gflow-assign-layout" in listed
    assert "--canonicalize" in listed
    assert re.match(r"gflow-opt \d", tool("--version").out)
    assert "Available Dialects" in tool("--show-dialects").out


def test_upstream_names_are_passes() -> None:
    from gflow.compiler.driver.upstream_passes import UPSTREAM_PASSES
    from gflow.dialects.mlir import PassManager, ir

    unknown = []
    with ir.Context():
        for name in UPSTREAM_PASSES:
            try:
                PassManager.parse(f"any({name})")
            except ValueError:
                unknown.append(name)
    assert unknown == []


def test_timing_and_unregistered_dialects(tool: Tool) -> None:
    result = tool("--cse", "--gflow-timing", stdin=GOOD)
    assert re.search(r"Total Execution Time: [0-9.]+ seconds", result.err)
    assert re.search(r"%\)  cse", result.err)
    assert tool(stdin='"a.b"() : () -> ()').code == 1
    assert tool("--allow-unregistered-dialect", stdin='"a.b"() : () -> ()').code == 0
    assert tool("--no-implicit-module", stdin=GOOD).out.startswith("func.func @f")


def test_elides_large_constants(tool: Tool) -> None:
    numbers = ", ".join(map(str, range(20)))
    text = f'%0 = "gflow.constant"() {{value = dense<[{numbers}]> : tensor<20xi64>}} : () -> tensor<20xi64>'
    assert (
        "dense_resource<__elided__>"
        in tool("--mlir-elide-elementsattrs-if-larger=10", stdin=text).out
    )


def test_starts_without_torch() -> None:
    code = "import sys; from gflow.compiler.tools.opt import main; main([]); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=GOOD, text=True, capture_output=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_a_closed_pipe_is_no_error_message() -> None:
    command = f"{sys.executable} -m gflow.compiler.tools.opt --help | head -1"
    done = subprocess.run(command, shell=True, text=True, capture_output=True, check=False)
    assert done.stderr == ""
