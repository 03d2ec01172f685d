// RUN: %gflow-opt %s --gflow-fuse --gflow-join-reductions=programs=528 | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-join-reductions{least-rows=5000}))' | FileCheck %s --check-prefix=FEW

// The backward of a norm: rows (the input's gradient) and columns (weight's and bias's) in one kernel, the updates in another.

// FEW-NOT: partial_sums

// CHECK-LABEL: func.func @f(
// CHECK-NEXT:   %[[v0:.+]]:3 = "gflow.fused"(%arg0, %arg1) ({
// CHECK-NEXT:   ^bb0(%arg4: tensor<4096x256xf32>, %arg5: tensor<4096x256xf32>):
// CHECK-NEXT:   %[[v2:.+]] = "gflow.mul"(%arg5, %arg4) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.reduce"(%[[v2]]) {dims = array<i64: 1>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<4096xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.broadcast"(%[[v3]]) {dims = array<i64: 0>, shape = array<i64: 4096, 256>} : (tensor<4096xf32>) -> tensor<4096x256xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.mul"(%arg4, %[[v4]]) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.sub"(%arg5, %[[v5]]) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.partial_sums"(%arg5) {run = 8 : i64} : (tensor<4096x256xf32>) -> tensor<512x256xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.partial_sums"(%[[v2]]) {run = 8 : i64} : (tensor<4096x256xf32>) -> tensor<512x256xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v6]], %[[v7]], %[[v8]]) {operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<4096x256xf32>, tensor<512x256xf32>, tensor<512x256xf32>) -> ()
// CHECK-NEXT:   }) {kind = "row", operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> (tensor<4096x256xf32>, tensor<512x256xf32>, tensor<512x256xf32>)
// CHECK-NEXT:   %[[v1:.+]]:2 = "gflow.fused"(%arg2, %arg3, %[[v0]]#1, %[[v0]]#2) ({
// CHECK-NEXT:   ^bb0(%arg4: tensor<256xf32>, %arg5: tensor<256xf32>, %arg6: tensor<512x256xf32>, %arg7: tensor<512x256xf32>):
// CHECK-NEXT:   %[[v2:.+]] = "gflow.reduce"(%arg6) {dims = array<i64: 0>, kind = "sum"} : (tensor<512x256xf32>) -> tensor<256xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.add"(%arg4, %[[v2]]) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.reduce"(%arg7) {dims = array<i64: 0>, kind = "sum"} : (tensor<512x256xf32>) -> tensor<256xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.add"(%arg5, %[[v4]]) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v3]], %[[v5]]) {operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<256xf32>, tensor<256xf32>) -> ()
// CHECK-NEXT:   }) {kind = "column", operandSegmentSizes = array<i32: 2, 2, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<256xf32>, tensor<256xf32>, tensor<512x256xf32>, tensor<512x256xf32>) -> (tensor<256xf32>, tensor<256xf32>)
// CHECK-NEXT:   return %[[v0]]#0, %[[v1]]#0, %[[v1]]#1 : tensor<4096x256xf32>, tensor<256xf32>, tensor<256xf32>
func.func @f(%x: tensor<4096x256xf32>, %g: tensor<4096x256xf32>, %v: tensor<256xf32>, %w: tensor<256xf32>)
    -> (tensor<4096x256xf32>, tensor<256xf32> {gflow.alias = 2 : i64}, tensor<256xf32> {gflow.alias = 3 : i64}) {
  %m = "gflow.mul"(%g, %x) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
  %s = "gflow.reduce"(%m) {dims = array<i64: 1>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<4096xf32>
  %b = "gflow.broadcast"(%s) {dims = array<i64: 0>, shape = array<i64: 4096, 256>} : (tensor<4096xf32>) -> tensor<4096x256xf32>
  %h = "gflow.mul"(%x, %b) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
  %d = "gflow.sub"(%g, %h) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
  %t = "gflow.reduce"(%g) {dims = array<i64: 0>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<256xf32>
  %u = "gflow.add"(%v, %t) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  %r = "gflow.reduce"(%m) {dims = array<i64: 0>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<256xf32>
  %q = "gflow.add"(%w, %r) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  return %d, %u, %q : tensor<4096x256xf32>, tensor<256xf32>, tensor<256xf32>
}
