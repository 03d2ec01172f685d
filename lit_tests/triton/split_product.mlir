// RUN: %gflow-opt %s --pipeline-for=cuda --emit=triton --target=cuda:80 | FileCheck %s

// Few rows and columns, a long K: partial sums in scratch, which a second kernel adds up in order.

// CHECK:     @weight_grad for cuda:80: 2 steps, 2 kernels
// CHECK:     matmul_partial_{{.*}}M=32, N=64, K=65536
// CHECK:     total_mul_{{.*}}(partial=arena
// CHECK:     def matmul_partial_
// CHECK:       share = tl.cdiv(tl.cdiv(K, BLOCK_K), splits)
// CHECK:       for step in range(first_step, last_step):
// CHECK:         acc = tl.dot(x, y, acc, input_precision="ieee")
// CHECK:       out0 += tl.program_id(1) * numel
// CHECK:     def total_mul_
// CHECK:       for split in range(0, splits, 8):
// CHECK:         part7 = tl.load(partial + (at + 7 * numel), mask=inside & (split + 7 < splits), other=0)
// CHECK:         acc += (((part0 + part1) + (part2 + part3)) + ((part4 + part5) + (part6 + part7)))
// CHECK:       tl.store(
func.func @weight_grad(%dy: tensor<65536x32xf32>, %x: tensor<65536x64xf32>) -> tensor<32x64xf32> {
  %t = "gflow.transpose"(%dy) {permutation = array<i64: 1, 0>} : (tensor<65536x32xf32>) -> tensor<32x65536xf32>
  %p = "gflow.matmul"(%t, %x) : (tensor<32x65536xf32>, tensor<65536x64xf32>) -> tensor<32x64xf32>
  %c = "gflow.constant"() {value = dense<0.125> : tensor<32x64xf32>} : () -> tensor<32x64xf32>
  %r = "gflow.mul"(%p, %c) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  return %r : tensor<32x64xf32>
}
