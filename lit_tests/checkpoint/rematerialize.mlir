// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=budget=50000" | FileCheck %s
// RUN: %gflow-opt %s --gflow-fuse --gflow-rematerialize | FileCheck %s --check-prefix=NONE
// RUN: not %gflow-opt %s --gflow-fuse "--gflow-rematerialize=budget=10000" 2>&1 | FileCheck %s --check-prefix=LEAST
// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown=0.5 worth=0" | FileCheck %s --check-prefix=TIME
// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown=0.001 worth=0" | FileCheck %s --check-prefix=NONE
// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=slowdown=0.5" | FileCheck %s --check-prefix=NONE
// RUN: not %gflow-opt %s --gflow-fuse "--gflow-rematerialize=fraction=1.5" 2>&1 | FileCheck %s --check-prefix=RANGE

// Activations of 16 KiB each wait for the way back; some of them are computed again.
// NONE-NOT: gflow.recomputed
// NONE-NOT: gflow.rematerialized
// LEAST: error: the memory budget of 10000 bytes cannot be met: the least that was found is {{[0-9]+}} bytes, and {{[0-9]+}} bytes are needed without recomputation
// RANGE: error: budget must be a number of bytes, fraction and slowdown between 0 and 1
// TIME-LABEL: func.func @chain(
// TIME-SAME:    gflow.rematerialized = {arena_after = {{[0-9]+}} : i64, arena_before = {{[0-9]+}} : i64, budget = 0 : i64, ops = {{[0-9]+}} : i64, seconds = {{.*}} : f64}
// TIME:         gflow.recomputed
// CHECK-LABEL: func.func @chain(
// CHECK-SAME:    gflow.rematerialized = {arena_after = {{[0-9]+}} : i64, arena_before = {{[0-9]+}} : i64, budget = 50000 : i64, ops = {{[0-9]+}} : i64, seconds = {{.*}} : f64}
// CHECK:         gflow.recomputed
func.func @chain(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %m0 = "gflow.matmul"(%x, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %a0 = "gflow.tanh"(%m0) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %m1 = "gflow.matmul"(%a0, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %a1 = "gflow.tanh"(%m1) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %m2 = "gflow.matmul"(%a1, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %a2 = "gflow.tanh"(%m2) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %m3 = "gflow.matmul"(%a2, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %a3 = "gflow.tanh"(%m3) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %n0 = "gflow.matmul"(%a3, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %n1 = "gflow.matmul"(%n0, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %g3 = "gflow.mul"(%n1, %a3) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d2 = "gflow.matmul"(%g3, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %g2 = "gflow.mul"(%d2, %a2) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d1 = "gflow.matmul"(%g2, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %g1 = "gflow.mul"(%d1, %a1) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d0 = "gflow.matmul"(%g1, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %g0 = "gflow.mul"(%d0, %a0) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d = "gflow.matmul"(%g0, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %d : tensor<64x64xf32>
}
