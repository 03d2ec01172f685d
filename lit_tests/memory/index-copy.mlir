// RUN: %gflow-opt %s --gflow-fuse --gflow-materialize | FileCheck %s
// RUN: %gflow-opt %s --pipeline-for=cpu | FileCheck %s --check-prefix=PLAN

// Slices of a cache are written over it: nothing is copied.
// CHECK-LABEL: func.func @cache(
// CHECK:         %[[C:.+]] = "gflow.index_copy"(%arg0, %arg1, %arg2)
// CHECK-NEXT:    return %[[C]]
// PLAN-LABEL:  func.func @cache(
// PLAN:          "gflow.index_copy"(%arg0, %arg1, %arg2) {{.*}}gflow.buffers = ["arg:0"]
func.func @cache(%x: tensor<4x64x8xf32>, %i: tensor<1xi64>, %s: tensor<4x1x8xf32>) -> (tensor<4x64x8xf32> {gflow.alias = 0 : i64}) {
  %0 = "gflow.index_copy"(%x, %i, %s) {dim = 1 : i64} : (tensor<4x64x8xf32>, tensor<1xi64>, tensor<4x1x8xf32>) -> tensor<4x64x8xf32>
  return %0 : tensor<4x64x8xf32>
}

// What is written comes of the cache itself: it would be read while it is written.
// CHECK-LABEL: func.func @moved(
// CHECK:         %[[S:.+]] = "gflow.slice"(%arg0)
// CHECK:         %[[C:.+]] = "gflow.index_copy"(%arg0, %arg1, %[[S]])
// CHECK:         %[[R:.+]] = "gflow.fused"(%[[C]])
// CHECK:         return %[[R]]
// PLAN-LABEL:  func.func @moved(
// PLAN:          "gflow.index_copy"{{.*}}gflow.buffers = ["arena:
func.func @moved(%x: tensor<4x64x8xf32>, %i: tensor<1xi64>) -> (tensor<4x64x8xf32> {gflow.alias = 0 : i64}) {
  %0 = "gflow.slice"(%x) {starts = array<i64: 0, 3, 0>, limits = array<i64: 4, 4, 8>, strides = array<i64: 1, 1, 1>} : (tensor<4x64x8xf32>) -> tensor<4x1x8xf32>
  %1 = "gflow.index_copy"(%x, %i, %0) {dim = 1 : i64} : (tensor<4x64x8xf32>, tensor<1xi64>, tensor<4x1x8xf32>) -> tensor<4x64x8xf32>
  return %1 : tensor<4x64x8xf32>
}

// The old value is returned too.
// CHECK-LABEL: func.func @kept(
// CHECK:         %[[C:.+]] = "gflow.index_copy"(%arg0, %arg1, %arg2)
// CHECK:         "gflow.fused"(%[[C]])
func.func @kept(%x: tensor<4x8xf32>, %i: tensor<1xi64>, %s: tensor<1x8xf32>) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}, tensor<4x8xf32>) {
  %0 = "gflow.index_copy"(%x, %i, %s) {dim = 0 : i64} : (tensor<4x8xf32>, tensor<1xi64>, tensor<1x8xf32>) -> tensor<4x8xf32>
  return %0, %x : tensor<4x8xf32>, tensor<4x8xf32>
}
