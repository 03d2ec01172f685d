// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown=0.5 worth=0" | FileCheck %s --check-prefix=NORM
// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown=0.001 worth=0" | FileCheck %s --check-prefix=KEPT
// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown=0.001 slowdown-to-enough=0.5 worth=0" | FileCheck %s --check-prefix=NORM
// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown-to-enough=0.5 worth=0" | FileCheck %s --check-prefix=NORM
// RUN: not %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown=0.1 slowdown-to-enough=1.5" 2>&1 | FileCheck %s --check-prefix=RANGE

// RANGE: error: budget must be a number of bytes, fraction and slowdown between 0 and 1

// The rows without their mean are recomputed from the means, which the first kernel stores for that: no second reduction. A
// kernel whose statistics no recomputation reads keeps its one result.
// NORM-LABEL: func.func @norm(
// NORM:         {{%.*}}:2 = "gflow.fused"(%arg0)
// NORM:         "gflow.reduce"
// NORM:         "gflow.yield"({{.*}}) {{.*}} : (tensor<64x512xf32>, tensor<64xf32>) -> ()
// NORM-NOT:     "gflow.reduce"
// NORM:         gflow.recomputed{{.*}} kind = "pointwise"{{.*}} : (tensor<64xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
// KEPT-LABEL: func.func @norm(
// KEPT-NOT:     gflow.recomputed
// KEPT:         kind = "row"{{.*}} : (tensor<64x512xf32>) -> tensor<64x512xf32>
func.func @norm(%x: tensor<64x512xf32>, %w: tensor<512x512xf32>) -> tensor<64x512xf32> {
  %s = "gflow.reduce"(%x) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x512xf32>) -> tensor<64xf32>
  %b = "gflow.broadcast"(%s) {dims = array<i64: 0>, shape = array<i64: 64, 512>} : (tensor<64xf32>) -> tensor<64x512xf32>
  %n = "gflow.sub"(%x, %b) : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
  %m0 = "gflow.matmul"(%n, %w) : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %m1 = "gflow.matmul"(%m0, %w) : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %m2 = "gflow.matmul"(%m1, %w) : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %m3 = "gflow.matmul"(%m2, %w) : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %m4 = "gflow.matmul"(%m3, %w) : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %m5 = "gflow.matmul"(%m4, %w) : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
  %t = "gflow.transpose"(%n) {permutation = array<i64: 1, 0>} : (tensor<64x512xf32>) -> tensor<512x64xf32>
  %p = "gflow.matmul"(%m5, %t) : (tensor<64x512xf32>, tensor<512x64xf32>) -> tensor<64x64xf32>
  %d = "gflow.matmul"(%p, %x) : (tensor<64x64xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
  return %d : tensor<64x512xf32>
}
