// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v3}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v3},gflow-plan-memory))' --emit=kernels | FileCheck %s --check-prefix=ONCE

// Where half precision is widened to float32 on a processor: `widened` has the operands and, numbered after them, the results, and
// `then` begins with the loops of their conversions.

// B is converted whole, A and the result some rows at a time.
// CHECK-LABEL: func.func @pieces(
// CHECK:       rows = 1024 : i64, scratch = {{[0-9]+}} : i64, then = [{lanes = 16 : i64, order = array<i64: 0>, threads = "all"}, {lanes = 16 : i64, order = array<i64: 0>, threads = "all"}, {lanes = 16 : i64, order = array<i64: 0>, threads = "all"}]{{.*}}widened = array<i64: 0, 1, 2>}
func.func @pieces(%x: tensor<8192x512xbf16>, %w: tensor<512x512xbf16>) -> tensor<8192x512xbf16> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<8192x512xbf16>, tensor<512x512xbf16>) -> tensor<8192x512xbf16>
  return %0 : tensor<8192x512xbf16>
}

// An operand that stands twice is converted once. The epilogue's loops come last.
// CHECK-LABEL: func.func @batched(
// CHECK:       then = [{lanes = 16 : i64, order = array<i64: 0>}, {lanes = 16 : i64, order = array<i64: 0>}, {lanes = 16 : i64, order = array<i64: 0, 1>}]{{.*}}widened = array<i64: 0, 2>}
func.func @batched(%x: tensor<4x16x16xf16>, %b: tensor<16xf16>) -> tensor<4x16x16xf16> {
  %0 = "gflow.matmul"(%x, %x) : (tensor<4x16x16xf16>, tensor<4x16x16xf16>) -> tensor<4x16x16xf16>
  %1 = "gflow.broadcast"(%b) {shape = array<i64: 4, 16, 16>, dims = array<i64: 2>} : (tensor<16xf16>) -> tensor<4x16x16xf16>
  %2 = "gflow.add"(%0, %1) : (tensor<4x16x16xf16>, tensor<4x16x16xf16>) -> tensor<4x16x16xf16>
  return %2 : tensor<4x16x16xf16>
}

// The transpose of the weight is a view, which the conversion reads; the copy has the weight's order.
// CHECK-LABEL: func.func @convolution(
// CHECK:       kind = "direct"{{.*}}then = [{lanes = 16 : i64, order = array<i64: 0>}, {lanes = 16 : i64, order = array<i64: 0>}, {lanes = 16 : i64, order = array<i64: 0>}]{{.*}}widened = array<i64: 0, 1, 2>}
func.func @convolution(%x: tensor<2x10x10x16xbf16>, %w: tensor<32x16x3x3xbf16>) -> tensor<2x8x8x32xbf16> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<32x16x3x3xbf16>) -> tensor<32x3x3x16xbf16>
  %0 = "gflow.convolution"(%x, %t) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<2x10x10x16xbf16>, tensor<32x3x3x16xbf16>) -> tensor<2x8x8x32xbf16>
  return %0 : tensor<2x8x8x32xbf16>
}

// Attention is gflow's own on widened values; the logarithms of its sums are float32.
// CHECK-LABEL: func.func @call(
// CHECK:       kind = "attention{{(_rows)?}}", scratch = {{[0-9]+}} : i64, then = [{{.*}}], tile = array<i64: {{.*}}>, widened = array<i64: 0, 1, 2, 3>}
func.func @call(%q: tensor<1x4x2x8xf16>, %k: tensor<1x4x2x8xf16>, %v: tensor<1x4x2x8xf16>) -> tensor<1x4x2x8xf16> {
  %0:2 = "gflow.attention"(%q, %k, %v) {causal = true, scale = 0.125 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<1x4x2x8xf16>, tensor<1x4x2x8xf16>, tensor<1x4x2x8xf16>) -> (tensor<1x4x2x8xf16>, tensor<1x2x4xf32>)
  return %0#0 : tensor<1x4x2x8xf16>
}

// A product without K is zeros, in loops of their own.
// CHECK-LABEL: func.func @zeros(
// CHECK:       gflow.kernel = {kind = "zero", then = [{lanes = 16 : i64, order = array<i64: 0>}]}
func.func @zeros(%x: tensor<8x0xf32>, %w: tensor<0x16xf32>) -> tensor<8x16xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<8x0xf32>, tensor<0x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// A value is rounded once: what is stored has the bits that the op gave.
// ONCE-LABEL: llvm.func @pointwise_mul
// ONCE:       cvtneps2bf16
// ONCE-NOT:   cvtneps2bf16
// ONCE:       llvm.store
func.func @once(%x: tensor<100xbf16>, %y: tensor<100xbf16>) -> tensor<100xbf16> {
  %0 = "gflow.mul"(%x, %y) : (tensor<100xbf16>, tensor<100xbf16>) -> tensor<100xbf16>
  return %0 : tensor<100xbf16>
}
