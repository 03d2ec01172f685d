// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t
// RUN: not %gflow-opt %S/Inputs/wrong-expectations.mlir --split-input-file --verify-diagnostics 2>&1 | FileCheck %s

// CHECK: wrong-expectations.mlir:2:6: error: expected error "nothing like it" was not produced
// CHECK: wrong-expectations.mlir:8:3: error: unexpected error: type of return operand 0
// CHECK: wrong-expectations.mlir:14:6: error: 'error' diagnostic emitted when expecting a 'warning'

func.func @below(%a: tensor<4xf32>) -> tensor<5xf32> {
  // expected-error @below {{type of return operand 0}}
  return %a : tensor<4xf32>
}

// -----

func.func @above(%a: tensor<4xf32>) -> tensor<5xf32> {
  return %a : tensor<4xf32>
  // expected-error@above {{type of return operand 0}}
}

// -----

// expected-error-re@+2 {{type of {{[a-z]+}} operand {{[0-9]}} ('tensor<4xf32>')}}
func.func @offset(%a: tensor<4xf32>) -> tensor<5xf32> {
  return %a : tensor<4xf32>
}
