// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{epilogues=false}))' | FileCheck %s

// A softmax is one kernel that walks rows.
// CHECK-LABEL: func.func @softmax(
// CHECK:         %[[K:.+]] = "gflow.fused"(%arg0) ({
// CHECK:           "gflow.reduce"({{.*}}kind = "max"
// CHECK:           "gflow.exp"
// CHECK:           "gflow.reduce"({{.*}}kind = "sum"
// CHECK:           %[[Y:.+]] = "gflow.div"
// CHECK:           "gflow.yield"(%[[Y]])
// CHECK:         }) {kind = "row"
// CHECK-NEXT:    return %[[K]]
func.func @softmax(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "gflow.reduce"(%x) {dims = array<i64: 1>, kind = "max"} : (tensor<8x16xf32>) -> tensor<8xf32>
  %1 = "gflow.broadcast"(%0) {dims = array<i64: 0>, shape = array<i64: 8, 16>} : (tensor<8xf32>) -> tensor<8x16xf32>
  %2 = "gflow.sub"(%x, %1) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %3 = "gflow.exp"(%2) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %4 = "gflow.reduce"(%3) {dims = array<i64: 1>, kind = "sum"} : (tensor<8x16xf32>) -> tensor<8xf32>
  %5 = "gflow.broadcast"(%4) {dims = array<i64: 0>, shape = array<i64: 8, 16>} : (tensor<8xf32>) -> tensor<8x16xf32>
  %6 = "gflow.div"(%3, %5) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  return %6 : tensor<8x16xf32>
}

// A contraction stands between two kernels.
// CHECK-LABEL: func.func @two_kernels(
// CHECK:         %[[A:.+]] = "gflow.fused"(%arg0)
// CHECK:           "gflow.exp"
// CHECK:           "gflow.add"
// CHECK:         }) {kind = "pointwise"
// CHECK:         %[[M:.+]] = "gflow.matmul"(%[[A]], %arg1)
// CHECK:         "gflow.fused"(%[[M]])
// CHECK:           "gflow.tanh"
func.func @two_kernels(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = "gflow.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "gflow.add"(%0, %x) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = "gflow.matmul"(%1, %w) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = "gflow.tanh"(%2) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}

// Views alone make no kernel.
// CHECK-LABEL: func.func @views(
// CHECK-NOT:     gflow.fused
func.func @views(%x: tensor<8x16xf32>) -> (tensor<16x8xf32>, tensor<128xf32>) {
  %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 128>} : (tensor<16x8xf32>) -> tensor<128xf32>
  return %0, %1 : tensor<16x8xf32>, tensor<128xf32>
}

// A column reduction takes up what has its shape, and no more.
// CHECK-LABEL: func.func @column(
// CHECK:         %[[K:.+]] = "gflow.fused"(%arg0) ({
// CHECK:           "gflow.reduce"
// CHECK:           "gflow.sqrt"
// CHECK:         }) {kind = "column"
// CHECK:         "gflow.fused"(%[[K]], %arg0)
// CHECK:         }) {kind = "pointwise"
func.func @column(%x: tensor<64x16xf32>) -> tensor<64x16xf32> {
  %0 = "gflow.reduce"(%x) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x16xf32>) -> tensor<16xf32>
  %1 = "gflow.sqrt"(%0) : (tensor<16xf32>) -> tensor<16xf32>
  %2 = "gflow.broadcast"(%1) {dims = array<i64: 1>, shape = array<i64: 64, 16>} : (tensor<16xf32>) -> tensor<64x16xf32>
  %3 = "gflow.div"(%x, %2) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  return %3 : tensor<64x16xf32>
}
