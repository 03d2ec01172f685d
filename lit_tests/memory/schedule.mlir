// RUN: %gflow-opt %s --gflow-fuse --gflow-schedule | FileCheck %s

// The update of %w0 moves up to where its gradient is known and nothing reads the old %w0 any more.
// CHECK-LABEL: func.func @updates(
// CHECK:         "gflow.matmul"(%arg2, %arg0)
// CHECK:         "gflow.fused"({{.*}}%arg0
// CHECK:         "gflow.matmul"
// CHECK:         "gflow.fused"({{.*}}%arg1
// CHECK-NOT:     gflow.fused
func.func @updates(%w0: tensor<8x8xf32> {gflow.role = "parameter"}, %w1: tensor<8x8xf32> {gflow.role = "parameter"}, %dy: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}, tensor<8x8xf32> {gflow.alias = 1 : i64}) {
  %g0 = "gflow.matmul"(%dy, %dy) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %d = "gflow.matmul"(%dy, %w0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %g1 = "gflow.matmul"(%d, %dy) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %u0 = "gflow.sub"(%w0, %g0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %u1 = "gflow.sub"(%w1, %g1) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u0, %u1 : tensor<8x8xf32>, tensor<8x8xf32>
}
