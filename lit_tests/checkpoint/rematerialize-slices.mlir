// RUN: %gflow-opt %s --gflow-fuse "--gflow-rematerialize=fraction=0.8" | FileCheck %s

// The product's epilogue scales its reshaped result, and later kernels read both. The scaled result is recomputed from
// the product. The product stays without an epilogue, so it needs no region; a pointwise kernel cannot reshape what it
// reads, so the reshape is a view outside.
// CHECK-LABEL: func.func @epilogue(
// CHECK:         %[[PRODUCT:.+]] = "gflow.matmul"(%arg1, %arg0)
// CHECK-COUNT-4: "gflow.matmul"
// CHECK:         %[[VIEW:.+]] = "gflow.reshape"(%[[PRODUCT]])
// CHECK-NEXT:    "gflow.fused"(%[[VIEW]], %arg2) ({
// CHECK-NOT:       "gflow.reshape"
// CHECK:           "gflow.mul"
// CHECK:         {gflow.recomputed, kind = "pointwise"
// CHECK-NOT:     kind = "contraction"
func.func @epilogue(%w: tensor<64x16x64xf32>, %a: tensor<64x64x16xf32>, %s: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>) {
  %m = "gflow.matmul"(%a, %w) : (tensor<64x64x16xf32>, tensor<64x16x64xf32>) -> tensor<64x64x64xf32>
  %r = "gflow.reshape"(%m) {shape = array<i64: 16, 4, 64, 64>} : (tensor<64x64x64xf32>) -> tensor<16x4x64x64xf32>
  %b = "gflow.broadcast"(%s) {dims = array<i64: 3>, shape = array<i64: 16, 4, 64, 64>} : (tensor<64xf32>) -> tensor<16x4x64x64xf32>
  %e = "gflow.mul"(%r, %b) : (tensor<16x4x64x64xf32>, tensor<16x4x64x64xf32>) -> tensor<16x4x64x64xf32>
  %n = "gflow.matmul"(%m, %m) : (tensor<64x64x64xf32>, tensor<64x64x64xf32>) -> tensor<64x64x64xf32>
  %o = "gflow.matmul"(%n, %m) : (tensor<64x64x64xf32>, tensor<64x64x64xf32>) -> tensor<64x64x64xf32>
  %p = "gflow.matmul"(%o, %o) : (tensor<64x64x64xf32>, tensor<64x64x64xf32>) -> tensor<64x64x64xf32>
  %q = "gflow.matmul"(%p, %m) : (tensor<64x64x64xf32>, tensor<64x64x64xf32>) -> tensor<64x64x64xf32>
  %f = "gflow.matmul"(%e, %e) : (tensor<16x4x64x64xf32>, tensor<16x4x64x64xf32>) -> tensor<16x4x64x64xf32>
  %x = "gflow.reduce"(%q) {dims = array<i64: 0, 1>, kind = "sum"} : (tensor<64x64x64xf32>) -> tensor<64xf32>
  %y = "gflow.reduce"(%f) {dims = array<i64: 0, 1, 2>, kind = "sum"} : (tensor<16x4x64x64xf32>) -> tensor<64xf32>
  %g = "gflow.matmul"(%f, %e) : (tensor<16x4x64x64xf32>, tensor<16x4x64x64xf32>) -> tensor<16x4x64x64xf32>
  %z = "gflow.reduce"(%g) {dims = array<i64: 0, 1, 2>, kind = "sum"} : (tensor<16x4x64x64xf32>) -> tensor<64xf32>
  return %x, %y, %z : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>
}
