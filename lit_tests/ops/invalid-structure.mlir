// RUN: %gflow-opt %s --split-input-file --verify-diagnostics > %t

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{the block's arguments must have the operands' types, in their order}}
  %0 = "gflow.fused"(%a) ({
  ^bb0(%c: tensor<5xf32>):
    %b = "gflow.constant"() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>
    "gflow.yield"(%b) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{gflow.yield must give values of the result types, in their order}}
  %0 = "gflow.fused"(%a) ({
  ^bb0(%c: tensor<4xf32>):
    %b = "gflow.constant"() {value = dense<1.0> : tensor<3xf32>} : () -> tensor<3xf32>
    "gflow.yield"(%b) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<3xf32>) -> ()
  }) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>) {
  // expected-error @+1 {{the region yields nothing but its contraction's result}}
  %0 = "gflow.fused"(%a) ({
  ^bb0(%c: tensor<4x4xf32>):
    %b = "gflow.matmul"(%c, %c) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %r = "gflow.reshape"(%b) {shape = array<i64: 16>} : (tensor<4x4xf32>) -> tensor<16xf32>
    "gflow.yield"(%r) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<16xf32>) -> ()
  }) {kind = "contraction", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x4xf32>) -> tensor<16xf32>
  return
}

// -----

func.func @f(%a0: tensor<4xf32>) {
  // expected-error @+1 {{requires attribute 'overload' (a string: the overload, as in `aten.topk.default`)}}
  %0 = "gflow.aten"(%a0) {args = "[]", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xi1>) {
  // expected-error @+1 {{operand #0 must be one bool, a tensor<i1>, found tensor<4xi1>}}
  "gflow.check"(%a) {error = "IndexError", message = ""} : (tensor<4xi1>) -> ()
  return
}

// -----

func.func @f(%a: tensor<i1>, %b: tensor<i32>) {
  // expected-error @+1 {{operand #1 must be one number, a tensor<i64>, found tensor<i32>}}
  "gflow.check"(%a, %b) {error = "IndexError", message = ""} : (tensor<i1>, tensor<i32>) -> ()
  return
}

// -----

func.func @f(%a: tensor<i1>) {
  // expected-error @+1 {{'error' must be one of}}
  "gflow.check"(%a) {error = "SystemExit", message = ""} : (tensor<i1>) -> ()
  return
}
