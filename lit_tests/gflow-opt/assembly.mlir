// The dialect's assembly is read and printed; both forms may stand in one input.
// RUN: gflow-opt %s --pretty | FileCheck %s
// RUN: gflow-opt %s --pretty | gflow-opt | FileCheck %s --check-prefix=GENERIC
// RUN: gflow-opt %s --pretty --mlir-print-debuginfo | FileCheck %s --check-prefix=LOC

// CHECK-LABEL: func @layer(%arg0: 5x3xf32, %arg1: 3x4xf32, %arg2: 4xf32) -> 5x4xf32 {
// CHECK-NEXT:    %0 = gflow.matmul %arg0, %arg1 : (5x3xf32, 3x4xf32) -> 5x4xf32
// CHECK-NEXT:    %1 = gflow.fused(%arg3 = %0: 5x4xf32, %arg4 = %arg2: 4xf32) -> 5x4xf32 attributes {kind = "pointwise"} {
// CHECK-NEXT:      %2 = gflow.broadcast %arg4 {dims = [1], shape = [5, 4]} : 4xf32 -> 5x4xf32
// CHECK-NEXT:      %3 = gflow.add %arg3, %2 : 5x4xf32
// CHECK-NEXT:      %4 = gflow.constant dense<0.000000e+00> : 5x4xf32
// CHECK-NEXT:      %5 = gflow.maximum %3, %4 : 5x4xf32
// CHECK-NEXT:      gflow.yield %5 : 5x4xf32
// CHECK-NEXT:    }
// CHECK-NEXT:    return %1 : 5x4xf32

// GENERIC: %1 = "gflow.fused"(%0, %arg2) ({
// GENERIC: }) {kind = "pointwise", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<5x4xf32>, tensor<4xf32>) -> tensor<5x4xf32>

// LOC:      loc("forward:linear"("model.py":7:0))
// LOC-NEXT: %0 = gflow.matmul
// LOC-NEXT: %1 = gflow.fused
// LOC-NEXT: %2 = gflow.broadcast
// LOC-NEXT: %3 = gflow.add
// LOC-NEXT: loc("forward:relu"("model.py":8:0))
// LOC-NEXT: %4 = gflow.constant
func @layer(%x: 5x3xf32, %w: 3x4xf32, %b: 4xf32) -> 5x4xf32 {
  loc("forward:linear"("model.py":7:0))
  %y = gflow.matmul %x, %w : (5x3xf32, 3x4xf32) -> 5x4xf32
  %z = gflow.fused(%a = %y: 5x4xf32, %c = %b: 4xf32) -> 5x4xf32 attributes {kind = "pointwise"} {
    %d = "gflow.broadcast"(%c) {dims = array<i64: 1>, shape = array<i64: 5, 4>} : (tensor<4xf32>) -> tensor<5x4xf32> loc("forward:linear"("model.py":7:0))
    %e = gflow.add %a, %d : 5x4xf32
    loc("forward:relu"("model.py":8:0))
    %zero = gflow.constant dense<0.0> : 5x4xf32
    %f = gflow.maximum %e, %zero : 5x4xf32
    gflow.yield %f : 5x4xf32
  }
  return %z : 5x4xf32
}
