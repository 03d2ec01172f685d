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

// A reader of the old value that stands after the update, and doesn't need it, comes before it.
// CHECK-LABEL: func.func @late_reader(
// CHECK:         "gflow.transpose"(%arg0)
// CHECK:         "gflow.matmul"
// CHECK:         "gflow.fused"({{.*}}%arg0
func.func @late_reader(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}, tensor<8x8xf32>) {
  %u = "gflow.sub"(%w, %g) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %m = "gflow.matmul"(%t, %g) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u, %m : tensor<8x8xf32>, tensor<8x8xf32>
}

// A reader that needs both the old value and the new one stays behind the update.
// CHECK-LABEL: func.func @reader_of_both(
// CHECK:         %[[U:.+]] = "gflow.fused"(
// CHECK:         "gflow.matmul"(%[[U]], %arg0)
func.func @reader_of_both(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}, tensor<8x8xf32>) {
  %u = "gflow.sub"(%w, %g) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %m = "gflow.matmul"(%u, %w) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u, %m : tensor<8x8xf32>, tensor<8x8xf32>
}
