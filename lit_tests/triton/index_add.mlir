// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Indices in order first; then each row of the result adds up its own. No atomics.

// CHECK:     @embedding for cuda:90: 2 steps, 2 kernels
// CHECK:     def order_{{[0-9a-f]+}}(
// CHECK:       tl.store(places + before, own, mask=own < count)
// CHECK-NOT: atomic
// CHECK:     def index_add_{{[0-9a-f]+}}(
// CHECK:       while step > 0:
// CHECK:       for k in range(0, tl.max(length, 0), DEPTH):
func.func @embedding(%index: tensor<8x64xi64>, %dy: tensor<8x64x96xf32>) -> tensor<1000x96xf32> {
  %zeros = "gflow.constant"() {value = dense<0.0> : tensor<1000x96xf32>} : () -> tensor<1000x96xf32>
  %r = "gflow.index_add"(%zeros, %index, %dy) {dim = 0 : i64} : (tensor<1000x96xf32>, tensor<8x64xi64>, tensor<8x64x96xf32>) -> tensor<1000x96xf32>
  return %r : tensor<1000x96xf32>
}
