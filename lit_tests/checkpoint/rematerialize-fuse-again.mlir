// RUN: %gflow-opt %s --gflow-fuse --gflow-schedule "--gflow-rematerialize=fraction=0.7" | FileCheck %s --check-prefix=ALONE
// RUN: %gflow-opt %s --gflow-fuse --gflow-schedule "--gflow-rematerialize=fraction=0.7 fuse={} schedule={}" | FileCheck %s
// RUN: %gflow-opt %s --gflow-fuse --gflow-schedule "--gflow-rematerialize=fraction=0.7 fuse={max-ops=1}" | FileCheck %s --check-prefix=ALONE
// RUN: not %gflow-opt %s "--gflow-rematerialize=fraction=0.7 fuse={max-opts=1}" 2>&1 | FileCheck %s --check-prefix=TYPO

// TYPO: pass 'gflow-rematerialize{fuse}' has no option 'max-opts'; did you mean 'max-ops'?

// The recomputed activation gets a kernel of its own. (Kernels of one op would take more time.)
// ALONE-LABEL: func.func @activation(
// ALONE-COUNT-4: "gflow.matmul"
// ALONE-NEXT:    %[[AGAIN:.+]] = "gflow.fused"(%arg0) ({
// ALONE:           "gflow.tanh"
// ALONE:         {gflow.recomputed, kind = "pointwise"
// ALONE:         "gflow.fused"(
// ALONE-SAME:    %[[AGAIN]]
// ALONE:           "gflow.mul"
// ALONE:           "gflow.reduce"

// With `fuse`, the kernel that reads it computes it. A barrier keeps it from moving back to the first run.
// CHECK-LABEL: func.func @activation(
// CHECK-COUNT-4: "gflow.matmul"
// CHECK-NEXT:    %[[HELD:.+]]:2 = "gflow.optimization_barrier"(
// CHECK-NEXT:    "gflow.fused"(
// CHECK-SAME:    %[[HELD]]#
// CHECK:           "gflow.tanh"
// CHECK:           "gflow.mul"
// CHECK:           "gflow.reduce"
// CHECK:         {gflow.recomputed, kind = "row"
// CHECK-NOT:     gflow.recomputed
func.func @activation(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64xf32> {
  %h = "gflow.tanh"(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %a = "gflow.matmul"(%h, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %b = "gflow.matmul"(%a, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %c = "gflow.matmul"(%b, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d = "gflow.matmul"(%c, %w) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %e = "gflow.mul"(%d, %h) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %f = "gflow.reduce"(%e) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
  return %f : tensor<64xf32>
}
