// RUN: %gflow-opt %s --gflow-fuse | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{epilogues=false}))' | FileCheck %s --check-prefix=OFF
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{add-to-output=false}))' | FileCheck %s --check-prefix=NOADD
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{cast-scale=false}))' | FileCheck %s --check-prefix=NOCAST
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{update-ops=false update-in-contraction=false}))' | FileCheck %s --check-prefix=NOUPDATE

// Bias and residual, through a reshape that nothing else needs.
// CHECK-LABEL: func.func @residual(
// CHECK-NEXT:    %[[R:[0-9]+]] = "gflow.fused"(%{{.*}}) ({
// CHECK-NEXT:    ^bb0
// CHECK-NEXT:      %{{.+}} = "gflow.matmul"
// CHECK-NEXT:      %{{.+}} = "gflow.reshape"
// CHECK-NEXT:      %{{.+}} = "gflow.broadcast"
// CHECK-NEXT:      %{{.+}} = "gflow.add"
// CHECK-NEXT:      %{{.+}} = "gflow.add"
// CHECK-NEXT:      "gflow.yield"
// CHECK-NEXT:    }) {kind = "contraction"
// CHECK-NEXT:    return %[[R]]
// OFF-LABEL:   func.func @residual(
// OFF-NEXT:      %{{.+}} = "gflow.matmul"
// OFF-NEXT:      %{{.+}} = "gflow.reshape"
// OFF-NEXT:      %{{.+}} = "gflow.fused"
// OFF:           kind = "pointwise"
// NOADD-LABEL: func.func @residual(
// NOADD:         kind = "pointwise"
func.func @residual(%a: tensor<6x4xf32>, %w: tensor<4x8xf32>, %b: tensor<8xf32>, %x: tensor<2x3x8xf32>) -> tensor<2x3x8xf32> {
  %0 = "gflow.matmul"(%a, %w) : (tensor<6x4xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 3, 8>} : (tensor<6x8xf32>) -> tensor<2x3x8xf32>
  %2 = "gflow.broadcast"(%b) {shape = array<i64: 2, 3, 8>, dims = array<i64: 2>} : (tensor<8xf32>) -> tensor<2x3x8xf32>
  %3 = "gflow.add"(%1, %2) : (tensor<2x3x8xf32>, tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  %4 = "gflow.add"(%3, %x) : (tensor<2x3x8xf32>, tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  return %4 : tensor<2x3x8xf32>
}

// The product is returned, too: both are results. A later product's epilogue reads them.
// CHECK-LABEL: func.func @both(
// CHECK-NEXT:    %[[R:[0-9]+]]:2 = "gflow.fused"(%arg0, %arg1)
// CHECK:         kind = "contraction"
// CHECK-NEXT:    %[[D:.+]] = "gflow.fused"(%arg1, %[[R]]#0, %[[R]]#1)
// CHECK:           "gflow.matmul"
// CHECK:         return %[[R]]#{{[01]}}, %[[D]]
func.func @both(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = "gflow.matmul"(%a, %b) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "gflow.tanh"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = "gflow.matmul"(%1, %b) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = "gflow.sub"(%0, %2) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0, %3 : tensor<4x4xf32>, tensor<4x4xf32>
}

// A scaled cast is a kernel of its own where casts must not share one.
// CHECK-LABEL: func.func @cast(
// CHECK-NEXT:    %{{.+}} = "gflow.fused"
// CHECK:           "gflow.convert"
// CHECK:         kind = "contraction"
// NOCAST-LABEL: func.func @cast(
// NOCAST-NEXT:   %{{.+}} = "gflow.matmul"
// NOCAST-COUNT-2: kind = "pointwise"
func.func @cast(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> tensor<4x4xf16> {
  %half = "gflow.constant"() {value = dense<0.5> : tensor<4x4xf32>} : () -> tensor<4x4xf32>
  %0 = "gflow.matmul"(%a, %b) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "gflow.mul"(%0, %half) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = "gflow.convert"(%1) {dtype = "f16"} : (tensor<4x4xf32>) -> tensor<4x4xf16>
  return %2 : tensor<4x4xf16>
}

// The update of a weight follows the product that is its gradient; or is a kernel for each op.
// CHECK-LABEL: func.func @update(
// CHECK-NEXT:    %[[W:.+]] = "gflow.fused"
// CHECK:         kind = "contraction"
// CHECK-NEXT:    return %[[W]]
// NOUPDATE-LABEL: func.func @update(
// NOUPDATE-NEXT:   %{{.+}} = "gflow.matmul"
// NOUPDATE-COUNT-2: kind = "pointwise"
func.func @update(%dy: tensor<4x4xf32>, %x: tensor<4x4xf32>, %w: tensor<4x4xf32> {gflow.role = "parameter"}, %lr: tensor<f32>)
    -> (tensor<4x4xf32> {gflow.alias = 2 : i64}) {
  %0 = "gflow.matmul"(%dy, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "gflow.broadcast"(%lr) {shape = array<i64: 4, 4>, dims = array<i64>} : (tensor<f32>) -> tensor<4x4xf32>
  %2 = "gflow.mul"(%0, %1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = "gflow.sub"(%w, %2) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %3 : tensor<4x4xf32>
}
