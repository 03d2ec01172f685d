// RUN: %gflow-opt %s --pipeline-for=cuda --emit=triton --target=cuda:80 | FileCheck %s

// One channel of the weight for each of the input: no product of matrices. The weight's gradient of many positions has
// two launches.

// CHECK:     @weight_grad for cuda:80: 2 steps, 2 kernels
// CHECK:     depthwise_weight_grad_partial_
// CHECK:     total_
// CHECK:     def depthwise_weight_grad_partial_
// CHECK:       for start in range(low, high, BLOCK_P):
// CHECK:         acc8 += dy * x.to(tl.float32)
// CHECK:       tl.store(at + 8, tl.sum(acc8, axis=0), mask=col_ok)
func.func @weight_grad(%x: tensor<64x14x14x64xf16>, %dy: tensor<64x7x7x64xf16>) -> tensor<64x3x3x1xf16> {
  %w = "gflow.convolution_weight_grad"(%x, %dy) {dilation = array<i64: 1, 1>, groups = 64 : i64, layout = "N*C", padding = array<i64: 1, 1>, shape = array<i64: 64, 3, 3, 1>, stride = array<i64: 2, 2>} : (tensor<64x14x14x64xf16>, tensor<64x7x7x64xf16>) -> tensor<64x3x3x1xf16>
  return %w : tensor<64x3x3x1xf16>
}

// With few positions, a program sums all of them for a sector of channels.
// CHECK:     @few_positions for cuda:80: 1 steps, 1 kernels
// CHECK:     depthwise_weight_grad_
// CHECK:       low, high = 0, M
// CHECK:       acc = tl.where((tap == first + 8)[None, :], tl.sum(acc8, axis=0)[:, None], acc)
// CHECK:       tl.store(out0
func.func @few_positions(%x: tensor<8x14x14x64xf16>, %dy: tensor<8x7x7x64xf16>) -> tensor<64x3x3x1xf16> {
  %w = "gflow.convolution_weight_grad"(%x, %dy) {dilation = array<i64: 1, 1>, groups = 64 : i64, layout = "N*C", padding = array<i64: 1, 1>, shape = array<i64: 64, 3, 3, 1>, stride = array<i64: 2, 2>} : (tensor<8x14x14x64xf16>, tensor<8x7x7x64xf16>) -> tensor<64x3x3x1xf16>
  return %w : tensor<64x3x3x1xf16>
}
