// RUN: %gflow-opt %s --pipeline-for=cuda --emit=triton --target=cuda:80 | FileCheck %s

// One channel of the weight for each of the input: no product of matrices. The weight's gradient has two launches, as it adds over many positions.

// CHECK:     @weight_grad for cuda:80: 2 steps, 2 kernels
// CHECK:     depthwise_weight_grad_partial_
// CHECK:     total_
// CHECK:     def depthwise_weight_grad_partial_
// CHECK:       for start in range(low, high, BLOCK_P):
// CHECK:         acc8 += dy * x.to(tl.float32)
// CHECK:       tl.store(at + 8, tl.sum(acc8, axis=0), mask=col_ok)
func.func @weight_grad(%x: tensor<512x14x14x64xf16>, %dy: tensor<512x7x7x64xf16>) -> tensor<64x3x3x1xf16> {
  %w = "gflow.convolution_weight_grad"(%x, %dy) {dilation = array<i64: 1, 1>, groups = 64 : i64, layout = "N*C", padding = array<i64: 1, 1>, shape = array<i64: 64, 3, 3, 1>, stride = array<i64: 2, 2>} : (tensor<512x14x14x64xf16>, tensor<512x7x7x64xf16>) -> tensor<64x3x3x1xf16>
  return %w : tensor<64x3x3x1xf16>
}
