// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-pad-rows))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-pad-rows{least=4096}))' | FileCheck %s --check-prefix=SHORT
// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s --check-prefix=KERNELS

// A product, a softmax without its sums, and a product again. Rows of 1,001 halves are 1,008 apart, so kernels read and write up to there,
// and the last product takes zeros for what is behind a row.
// CHECK-LABEL: func.func @head(
// CHECK:         "gflow.matmul"(%arg0, %arg1) {gflow.padded = array<i64: 1008>}
// CHECK:         }) {gflow.padded = array<i64: 1008>, kind = "row"
// CHECK:         "gflow.matmul"
// CHECK-NOT:     gflow.padded
// SHORT-LABEL: func.func @head(
// SHORT-NOT:     gflow.padded
// KERNELS:       # @head for cuda:90: 4 steps
// KERNELS:       matmul_{{.*}}out0_s0=1008, out0_to=1008)
// KERNELS:       reduce_{{.*}}s0_0=1008, s_to0=1008, out0=arena)
// KERNELS:       tl.store(out0 + (rows * out0_s0)[:, None] + cols[None, :], {{.*}}, mask=(rows < M)[:, None] & (cols < out0_to)[None, :])
// KERNELS:       cols_to0 = i1 < s_to0
// KERNELS:       x = tl.load(a_at + k, mask=(offs_k < a_to - k)[None, :], other=0.0)
// KERNELS-NEXT:  x = tl.where((offs_k < K - k)[None, :], x, 0.0)
func.func @head(%x: tensor<64x32xbf16>, %w: tensor<32x1001xbf16>, %v: tensor<1001x32xbf16>) -> tensor<64x32xbf16> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<64x32xbf16>, tensor<32x1001xbf16>) -> tensor<64x1001xbf16>
  %m = "gflow.reduce"(%0) {kind = "max", dims = array<i64: 1>} : (tensor<64x1001xbf16>) -> tensor<64xbf16>
  %b = "gflow.broadcast"(%m) {dims = array<i64: 0>, shape = array<i64: 64, 1001>} : (tensor<64xbf16>) -> tensor<64x1001xbf16>
  %s = "gflow.sub"(%0, %b) : (tensor<64x1001xbf16>, tensor<64x1001xbf16>) -> tensor<64x1001xbf16>
  %1 = "gflow.matmul"(%s, %v) : (tensor<64x1001xbf16>, tensor<1001x32xbf16>) -> tensor<64x32xbf16>
  return %1 : tensor<64x32xbf16>
}

// Rows of whole vectors, results of the function, and what is only computed element by element.
// CHECK-LABEL: func.func @dense(
// CHECK-NOT:     gflow.padded
func.func @dense(%x: tensor<64x32xbf16>, %w: tensor<32x1000xbf16>, %u: tensor<32x1001xbf16>, %z: tensor<64x1001xbf16>, %i: tensor<8xi64>) -> (tensor<64x1000xbf16>, tensor<64x1001xbf16>, tensor<8x1001xbf16>) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<64x32xbf16>, tensor<32x1000xbf16>) -> tensor<64x1000xbf16>
  %1 = "gflow.tanh"(%0) : (tensor<64x1000xbf16>) -> tensor<64x1000xbf16>
  %2 = "gflow.matmul"(%x, %u) : (tensor<64x32xbf16>, tensor<32x1001xbf16>) -> tensor<64x1001xbf16>
  %3 = "gflow.exp"(%z) : (tensor<64x1001xbf16>) -> tensor<64x1001xbf16>
  %4 = "gflow.take"(%3, %i) {dim = 0 : i64} : (tensor<64x1001xbf16>, tensor<8xi64>) -> tensor<8x1001xbf16>
  return %1, %2, %4 : tensor<64x1000xbf16>, tensor<64x1001xbf16>, tensor<8x1001xbf16>
}
