// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Rows of an odd number of elements: of a large product they are copied first, to rows that descriptors can read.

// CHECK:     @grad for cuda:90: 2 steps, 2 kernels
// CHECK:     pointwise_{{.*}}=4099, {{.*}}=4096, {{.*}}=arg0, {{.*}}=4099, {{.*}}=arena, {{.*}}_8=513
// CHECK:     matmul_{{.*}}(a=arena{{.*}}, b=arg1, M=4096, N=2048, {{.*}}K=4099
// CHECK:     def matmul_
// CHECK:     a_desc = tl.make_tensor_descriptor(a, [M, K], [a_m, 1], [BLOCK_M, BLOCK_K])
func.func @grad(%dy: tensor<4096x4099xbf16>, %w: tensor<4099x2048xbf16>) -> tensor<4096x2048xbf16> {
  %p = "gflow.matmul"(%dy, %w) : (tensor<4096x4099xbf16>, tensor<4099x2048xbf16>) -> tensor<4096x2048xbf16>
  return %p : tensor<4096x2048xbf16>
}
