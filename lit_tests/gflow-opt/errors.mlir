// RUN: not %gflow-opt %s 2>&1 | FileCheck %s --check-prefix=IR
// RUN: not %gflow-opt --gflow-simplifi %s 2>&1 | FileCheck %s --check-prefix=FLAG
// RUN: not %gflow-opt --pass-pipeline='builtin.module(func.func(gflow-simplify,gflow-assign-layot))' %s 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: not %gflow-opt %t.missing 2>&1 | FileCheck %s --check-prefix=MISSING

// FLAG: gflow-opt: Unknown command line argument '--gflow-simplifi'.  Try: 'gflow-opt --help'
// FLAG-NEXT: gflow-opt: Did you mean '--gflow-simplify'?

// PASS: <pass-pipeline>:1:41: error: 'gflow-assign-layot' does not refer to a registered pass or pass pipeline; did you mean 'gflow-assign-layout'?
// PASS-NEXT: builtin.module(func.func(gflow-simplify,gflow-assign-layot))
// PASS-NEXT:                                         ^

// MISSING: gflow-opt: cannot open input file '{{.*}}.missing': No such file or directory

// IR: errors.mlir:[[@LINE+3]]:8: error: 'gflow.add' op operands must have one type: operand #0 is tensor<4xf32>, operand #1 is tensor<5xf32>; insert gflow.broadcast or gflow.convert
func.func @f(%x: tensor<4xf32>, %y: tensor<5xf32>) -> tensor<4xf32> {
// IR-NEXT: %0 = "gflow.add"(%x, %y)
  %0 = "gflow.add"(%x, %y) : (tensor<4xf32>, tensor<5xf32>) -> tensor<4xf32>
// IR-NEXT: {{^}}       ^
  return %0 : tensor<4xf32>
}
