// RUN: %gflow-opt %s --gflow-fuse --gflow-materialize | FileCheck %s

// A reshape of a transposed value needs a copy, and so does a returned view of an argument. The reshape of
// the copy is a result itself.
// CHECK-LABEL: func.func @views(
// CHECK:         %[[T:.+]] = "gflow.transpose"(%arg0)
// CHECK:         %[[C:.+]] = "gflow.fused"(%[[T]]) ({
// CHECK-NEXT:    ^bb0(%[[X:.+]]: tensor<16x8xf32>):
// CHECK-NEXT:      "gflow.yield"(%[[X]])
// CHECK:         %[[R:.+]] = "gflow.reshape"(%[[C]])
// CHECK:         %[[V:.+]] = "gflow.fused"(%[[T]]) ({
// CHECK:         return %[[V]], %[[R]]
func.func @views(%x: tensor<8x16xf32>) -> (tensor<16x8xf32>, tensor<128xf32>) {
  %0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 128>} : (tensor<16x8xf32>) -> tensor<128xf32>
  return %0, %1 : tensor<16x8xf32>, tensor<128xf32>
}

// A product is written where the result of another shape lies; returned twice, the second is a copy.
// CHECK-LABEL: func.func @reshaped(
// CHECK:         %[[P:.+]] = "gflow.matmul"(%arg0, %arg1)
// CHECK-DAG:     %[[A:.+]] = "gflow.reshape"(%[[P]]) {shape = array<i64: 2, 4, 8>}
// CHECK-DAG:     %[[B:.+]] = "gflow.reshape"(%[[P]]) {shape = array<i64: 64>}
// CHECK:         %[[C:.+]] = "gflow.fused"(%[[B]]) ({
// CHECK:         return %[[A]], %[[C]]
func.func @reshaped(%x: tensor<8x4xf32>, %w: tensor<4x8xf32>) -> (tensor<2x4x8xf32>, tensor<64xf32>) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 4, 8>} : (tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %2 = "gflow.reshape"(%0) {shape = array<i64: 64>} : (tensor<8x8xf32>) -> tensor<64xf32>
  return %1, %2 : tensor<2x4x8xf32>, tensor<64xf32>
}

// An update that nothing prevents is made in place: no copy.
// CHECK-LABEL: func.func @update(
// CHECK:         %[[U:.+]] = "gflow.fused"(%arg0, %arg1)
// CHECK-NOT:     gflow.fused
// CHECK:         return %[[U]]
func.func @update(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}) {
  %u = "gflow.sub"(%w, %g) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// The old value is read after the update: the new one waits in a buffer.
// CHECK-LABEL: func.func @update_before_a_reader(
// CHECK:         %[[U:.+]] = "gflow.fused"(%arg0, %arg1)
// CHECK:         "gflow.matmul"(%[[U]], %arg0)
// CHECK:         %[[C:.+]] = "gflow.fused"(%[[U]]) ({
// CHECK:         return %[[C]]
func.func @update_before_a_reader(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}, tensor<8x8xf32>) {
  %u = "gflow.sub"(%w, %g) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %m = "gflow.matmul"(%u, %w) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u, %m : tensor<8x8xf32>, tensor<8x8xf32>
}

// Two buffers swapped: each old value is saved before either is overwritten.
// CHECK-LABEL: func.func @swap(
// CHECK:         %[[A:.+]] = "gflow.fused"(%arg1) ({
// CHECK:         %[[B:.+]] = "gflow.fused"(%arg0) ({
// CHECK:         %[[C:.+]] = "gflow.fused"(%[[A]]) ({
// CHECK:         %[[D:.+]] = "gflow.fused"(%[[B]]) ({
// CHECK:         return %[[C]], %[[D]]
func.func @swap(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32> {gflow.alias = 0 : i64}, tensor<4xf32> {gflow.alias = 1 : i64}) {
  return %b, %a : tensor<4xf32>, tensor<4xf32>
}

// A matrix whose rows overlap is none that a GEMM can read.
// CHECK-LABEL: func.func @broadcast_operand(
// CHECK:         %[[B:.+]] = "gflow.broadcast"(%arg0)
// CHECK:         %[[C:.+]] = "gflow.fused"(%[[B]]) ({
// CHECK:         "gflow.matmul"(%[[C]], %arg1)
func.func @broadcast_operand(%x: tensor<8xf32>, %w: tensor<8x4xf32>) -> tensor<6x4xf32> {
  %0 = "gflow.broadcast"(%x) {dims = array<i64: 1>, shape = array<i64: 6, 8>} : (tensor<8xf32>) -> tensor<6x8xf32>
  %1 = "gflow.matmul"(%0, %w) : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
  return %1 : tensor<6x4xf32>
}
