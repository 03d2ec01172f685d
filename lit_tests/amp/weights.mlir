// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-amp{dtype=f16}))' | FileCheck %s

// A weight is rounded once for forward and backward; its update is float32, as is the master copy.
// CHECK-LABEL: func.func @shared(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "f16"} : (tensor<2x8xf32>) -> tensor<2x8xf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "f16"} : (tensor<4x8xf32>) -> tensor<4x8xf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.transpose"(%[[v1]]) {permutation = array<i64: 1, 0>} : (tensor<4x8xf16>) -> tensor<8x4xf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.matmul"(%[[v0]], %[[v2]]) : (tensor<2x8xf16>, tensor<8x4xf16>) -> tensor<2x4xf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convert"(%arg2) {dtype = "f16"} : (tensor<2x4xf32>) -> tensor<2x4xf16>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.matmul"(%[[v4]], %[[v1]]) : (tensor<2x4xf16>, tensor<4x8xf16>) -> tensor<2x8xf16>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.transpose"(%[[v4]]) {permutation = array<i64: 1, 0>} : (tensor<2x4xf16>) -> tensor<4x2xf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.matmul"(%[[v6]], %[[v0]]) : (tensor<4x2xf16>, tensor<2x8xf16>) -> tensor<4x8xf16>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.convert"(%[[v7]]) {dtype = "f32"} : (tensor<4x8xf16>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.mul"(%[[v8]], %arg3) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v10:.+]] = "gflow.sub"(%arg1, %[[v9]]) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v11:.+]] = "gflow.convert"(%[[v3]]) {dtype = "f32"} : (tensor<2x4xf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v12:.+]] = "gflow.convert"(%[[v5]]) {dtype = "f32"} : (tensor<2x8xf16>) -> tensor<2x8xf32>
// CHECK-NEXT:   return %[[v11]], %[[v12]], %[[v10]] : tensor<2x4xf32>, tensor<2x8xf32>, tensor<4x8xf32>
func.func @shared(%x: tensor<2x8xf32>, %w: tensor<4x8xf32> {gflow.role = "parameter"}, %dy: tensor<2x4xf32>, %lr: tensor<4x8xf32> {gflow.role = "optimizer_state"})
    -> (tensor<2x4xf32>, tensor<2x8xf32>, tensor<4x8xf32> {gflow.alias = 1 : i64}) {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %y = "gflow.matmul"(%x, %t) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %dx = "gflow.matmul"(%dy, %w) : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
  %dyt = "gflow.transpose"(%dy) {permutation = array<i64: 1, 0>} : (tensor<2x4xf32>) -> tensor<4x2xf32>
  %dw = "gflow.matmul"(%dyt, %x) : (tensor<4x2xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
  %step = "gflow.mul"(%dw, %lr) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %new = "gflow.sub"(%w, %step) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y, %dx, %new : tensor<2x4xf32>, tensor<2x8xf32>, tensor<4x8xf32>
}

// What is a half already is not cast again, in either direction.
// CHECK-LABEL: func.func @no_double_casts(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg1) {dtype = "f16"} : (tensor<8x4xf32>) -> tensor<8x4xf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.matmul"(%arg0, %[[v0]]) : (tensor<2x8xf16>, tensor<8x4xf16>) -> tensor<2x4xf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v1]], %arg2) : (tensor<2x4xf16>, tensor<4x4xf16>) -> tensor<2x4xf16>
// CHECK-NEXT:   return %[[v2]] : tensor<2x4xf16>
func.func @no_double_casts(%h: tensor<2x8xf16>, %w: tensor<8x4xf32>, %v: tensor<4x4xf16>) -> tensor<2x4xf16> {
  %x = "gflow.convert"(%h) {dtype = "f32"} : (tensor<2x8xf16>) -> tensor<2x8xf32>
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.convert"(%0) {dtype = "f16"} : (tensor<2x4xf32>) -> tensor<2x4xf16>
  %2 = "gflow.matmul"(%1, %v) : (tensor<2x4xf16>, tensor<4x4xf16>) -> tensor<2x4xf16>
  return %2 : tensor<2x4xf16>
}

// Contractions of a parameter update stay in float32: the location says "optimizer".
// CHECK-LABEL: func.func @update(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "f16"} : (tensor<4x4xf32>) -> tensor<4x4xf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "f16"} : (tensor<4x4xf32>) -> tensor<4x4xf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<4x4xf16>, tensor<4x4xf16>) -> tensor<4x4xf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<4x4xf16>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%[[v3]], %arg1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   return %[[v3]], %[[v4]] : tensor<4x4xf32>, tensor<4x4xf32>
func.func @update(%x: tensor<4x4xf32>, %w: tensor<4x4xf32> {gflow.role = "parameter"}) -> (tensor<4x4xf32>, tensor<4x4xf32> {gflow.alias = 1 : i64}) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("forward:model"("a.py":1:0))
  %1 = "gflow.matmul"(%0, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> loc("optimizer:"("a.py":2:0))
  return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
}

// Attention takes and gives halves; the logarithms of its sums stay float32.
// CHECK-LABEL: func.func @attention(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "f16"} : (tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "f16"} : (tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convert"(%arg2) {dtype = "f16"} : (tensor<1x2x8x4xf32>) -> tensor<1x2x8x4xf16>
// CHECK-NEXT:   %[[v3:.+]]:2 = "gflow.aten"(%[[v0]], %[[v1]], %[[v2]]) {args = "{{\[\[}}{\22t\22: 0}, {\22t\22: 1}, {\22t\22: 2}, 0.0, true], {}]", operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>, overload = "aten._scaled_dot_product_flash_attention_for_cpu.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>, tensor<1x2x8x4xf16>) -> (tensor<1x2x8x4xf16>, tensor<1x2x8xf32>)
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convert"(%[[v3]]#0) {dtype = "f32"} : (tensor<1x2x8x4xf16>) -> tensor<1x2x8x4xf32>
// CHECK-NEXT:   return %[[v4]], %[[v3]]#1 : tensor<1x2x8x4xf32>, tensor<1x2x8xf32>
func.func @attention(%q: tensor<1x2x8x4xf32>, %k: tensor<1x2x8x4xf32>, %v: tensor<1x2x8x4xf32>) -> (tensor<1x2x8x4xf32>, tensor<1x2x8xf32>) {
  %0:2 = "gflow.aten"(%q, %k, %v) {args = "[[{\22t\22: 0}, {\22t\22: 1}, {\22t\22: 2}, 0.0, true], {}]", operandSegmentSizes = array<i32: 3, 0, 0, 0, 0, 0, 0, 0>, overload = "aten._scaled_dot_product_flash_attention_for_cpu.default", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>) -> (tensor<1x2x8x4xf32>, tensor<1x2x8xf32>)
  return %0#0, %0#1 : tensor<1x2x8x4xf32>, tensor<1x2x8xf32>
}

// No contraction of float32 gains: nothing changes.
// CHECK-LABEL: func.func @unchanged(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.exp"(%arg0) : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.matmul"(%arg1, %arg2) : (tensor<2x4xf64>, tensor<4x4xf64>) -> tensor<2x4xf64>
// CHECK-NEXT:   return %[[v0]], %[[v1]] : tensor<2x4xf32>, tensor<2x4xf64>
func.func @unchanged(%x: tensor<2x4xf32>, %a: tensor<2x4xf64>, %b: tensor<4x4xf64>) -> (tensor<2x4xf32>, tensor<2x4xf64>) {
  %0 = "gflow.exp"(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.matmul"(%a, %b) : (tensor<2x4xf64>, tensor<4x4xf64>) -> tensor<2x4xf64>
  return %0, %1 : tensor<2x4xf32>, tensor<2x4xf64>
}
