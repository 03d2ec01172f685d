// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// One launch, over the cache: of equal indices the last is written, by one program.

// CHECK:     @cache for cuda:90: 1 steps, 1 kernels
// CHECK:     def index_copy_{{[0-9a-f]+}}(
// CHECK:       later += tl.sum(same.to(tl.int32), 1)
// CHECK:       inside = (row < rows) & (at >= 0) & (at < size) & (later == 0)
// CHECK:       tl.store(out +
func.func @cache(%x: tensor<4x64x8xf32>, %i: tensor<3xi64>, %s: tensor<4x3x8xf32>) -> (tensor<4x64x8xf32> {gflow.alias = 0 : i64}) {
  %0 = "gflow.index_copy"(%x, %i, %s) {dim = 1 : i64} : (tensor<4x64x8xf32>, tensor<3xi64>, tensor<4x3x8xf32>) -> tensor<4x64x8xf32>
  return %0 : tensor<4x64x8xf32>
}
