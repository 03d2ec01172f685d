// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-select-kernels{threads=1 isa=x86-64-v4+bf16}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-select-kernels{threads=1 isa=x86-64-v4}))' | FileCheck %s --check-prefix=WIDE
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-select-kernels{threads=1 isa=x86-64-v4+bf16},gflow-plan-memory))' --emit=kernels | FileCheck %s --check-prefix=CODE

// Attention of bfloat16 values multiplies them in pairs on processors with AVX-512's dot products. The gradients, numbers 6
// to 8 behind six operands, are rounded from float32 sums. Elsewhere all values are widened.
// CHECK-LABEL: func.func @pairs(
// CHECK:       "gflow.attention"({{.*}}kind = "attention", precision = "bf16"
// CHECK-NOT:   widened
// CHECK:       "gflow.attention_grad"({{.*}}kind = "attention", precision = "bf16"{{.*}}widened = array<i64: 6, 7, 8>
// WIDE-LABEL:  func.func @pairs(
// WIDE:        "gflow.attention"({{.*}}kind = "attention"{{.*}}widened = array<i64: 0, 1, 2, 3>
// WIDE:        "gflow.attention_grad"({{.*}}widened = array<i64: 0, 1, 2, 3, 4, 6, 7, 8>
// CODE:        llvm.func @attention_pairs(
// CODE:        llvm.x86.avx512bf16.dpbf16ps.512
func.func @pairs(%q: tensor<2x70x4x16xbf16>, %k: tensor<2x70x4x16xbf16>, %v: tensor<2x70x4x16xbf16>, %dy: tensor<2x70x4x16xbf16>) -> (tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>) {
  %y:2 = "gflow.attention"(%q, %k, %v) {causal = false, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>) -> (tensor<2x70x4x16xbf16>, tensor<2x4x70xf32>)
  %g:3 = "gflow.attention_grad"(%dy, %q, %k, %v, %y#0, %y#1) {causal = false, operandSegmentSizes = array<i32: 2, 2, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x4x70xf32>) -> (tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>)
  return %y#0, %g#0, %g#1, %g#2 : tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>
}

// A bias is widened, and so is everything where channels are odd or rows are few.
// CHECK-LABEL: func.func @bias(
// CHECK:       precision = "bf16"{{.*}}widened = array<i64: 3>
func.func @bias(%q: tensor<2x70x4x16xbf16>, %k: tensor<2x70x4x16xbf16>, %v: tensor<2x70x4x16xbf16>, %b: tensor<1x1x70x70xbf16>) -> tensor<2x70x4x16xbf16> {
  %y:2 = "gflow.attention"(%q, %k, %v, %b) {causal = false, operandSegmentSizes = array<i32: 1, 2, 1, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<1x1x70x70xbf16>) -> (tensor<2x70x4x16xbf16>, tensor<2x4x70xf32>)
  return %y#0 : tensor<2x70x4x16xbf16>
}
// CHECK-LABEL: func.func @odd(
// CHECK-NOT:   precision
// CHECK:       widened = array<i64: 0, 1, 2, 3>
func.func @odd(%q: tensor<2x70x4x15xbf16>, %k: tensor<2x70x4x15xbf16>, %v: tensor<2x70x4x15xbf16>) -> tensor<2x70x4x15xbf16> {
  %y:2 = "gflow.attention"(%q, %k, %v) {causal = false, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (tensor<2x70x4x15xbf16>, tensor<2x70x4x15xbf16>, tensor<2x70x4x15xbf16>) -> (tensor<2x70x4x15xbf16>, tensor<2x4x70xf32>)
  return %y#0 : tensor<2x70x4x15xbf16>
}
// CHECK-LABEL: func.func @few(
// CHECK-NOT:   precision
// CHECK:       kind = "attention_rows"{{.*}}widened = array<i64: 0, 1, 2, 3>
func.func @few(%q: tensor<2x3x4x16xbf16>, %k: tensor<2x70x4x16xbf16>, %v: tensor<2x70x4x16xbf16>) -> tensor<2x3x4x16xbf16> {
  %y:2 = "gflow.attention"(%q, %k, %v) {causal = false, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 0.25 : f64} : (tensor<2x3x4x16xbf16>, tensor<2x70x4x16xbf16>, tensor<2x70x4x16xbf16>) -> (tensor<2x3x4x16xbf16>, tensor<2x4x3xf32>)
  return %y#0 : tensor<2x3x4x16xbf16>
}
