// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{column-length=1024},gflow-join-operand-sums{target=cuda:90},gflow-join-columns{target=cuda:90},gflow-unfuse{groups=2424b55ac9a0,b7a51243a1bb,0132cbadf0f8}))' | FileCheck %s

// A bias and a tanh; the product itself is read as well, and stays a result.
// CHECK-LABEL: func.func @two_results(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.matmul"(%arg1, %arg2) {gflow.group = "2424b55ac9a0"} : (tensor<64x256xbf16>, tensor<256x512xbf16>) -> tensor<64x512xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.fused"(%arg0, %[[v0]]) ({
// CHECK-NEXT:   ^bb0(%arg3: tensor<512xbf16>, %arg4: tensor<64x512xbf16>):
// CHECK-NEXT:   %[[v2:.+]] = "gflow.broadcast"(%arg3) {dims = array<i64: 1>, shape = array<i64: 64, 512>} : (tensor<512xbf16>) -> tensor<64x512xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.add"(%arg4, %[[v2]]) : (tensor<64x512xbf16>, tensor<64x512xbf16>) -> tensor<64x512xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.tanh"(%[[v3]]) : (tensor<64x512xbf16>) -> tensor<64x512xbf16>
// CHECK-NEXT:   "gflow.yield"(%[[v4]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x512xbf16>) -> ()
// CHECK-NEXT:   }) {gflow.group = "2424b55ac9a0", kind = "pointwise", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<512xbf16>, tensor<64x512xbf16>) -> tensor<64x512xbf16>
// CHECK-NEXT:   return %[[v0]], %[[v1]] : tensor<64x512xbf16>, tensor<64x512xbf16>
func.func @two_results(%b: tensor<512xbf16>, %x: tensor<64x256xbf16>, %w: tensor<256x512xbf16>) -> (tensor<64x512xbf16>, tensor<64x512xbf16>) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<64x256xbf16>, tensor<256x512xbf16>) -> tensor<64x512xbf16>
  %1 = "gflow.broadcast"(%b) {dims = array<i64: 1>, shape = array<i64: 64, 512>} : (tensor<512xbf16>) -> tensor<64x512xbf16>
  %2 = "gflow.add"(%0, %1) : (tensor<64x512xbf16>, tensor<64x512xbf16>) -> tensor<64x512xbf16>
  %3 = "gflow.tanh"(%2) : (tensor<64x512xbf16>) -> tensor<64x512xbf16>
  return %0, %3 : tensor<64x512xbf16>, tensor<64x512xbf16>
}

// A group that is not listed is only marked.
// CHECK-LABEL: func.func @other(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.fused"(%arg1, %arg0) ({
// CHECK-NEXT:   ^bb0(%arg2: tensor<32x96xf32>, %arg3: tensor<64x32xf32>):
// CHECK-NEXT:   %[[v1:.+]] = "gflow.matmul"(%arg3, %arg2) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.exp"(%[[v1]]) : (tensor<64x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v2]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<64x96xf32>) -> ()
// CHECK-NEXT:   }) {gflow.group = "9fc46357e9b9", kind = "contraction", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<32x96xf32>, tensor<64x32xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<64x96xf32>
func.func @other(%x: tensor<64x32xf32>, %w: tensor<32x96xf32>) -> tensor<64x96xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
  %1 = "gflow.exp"(%0) : (tensor<64x96xf32>) -> tensor<64x96xf32>
  return %1 : tensor<64x96xf32>
}

// The epilogue reads a reshape of the product, which stays a view.
// CHECK-LABEL: func.func @transposed(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg1) {permutation = array<i64: 1, 0>} : (tensor<96x32xf32>) -> tensor<32x96xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.matmul"(%arg0, %[[v0]]) {gflow.group = "b7a51243a1bb"} : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.reshape"(%[[v1]]) {shape = array<i64: 8, 8, 96>} : (tensor<64x96xf32>) -> tensor<8x8x96xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.fused"(%[[v2]], %arg2) ({
// CHECK-NEXT:   ^bb0(%arg3: tensor<8x8x96xf32>, %arg4: tensor<8x8x96xf32>):
// CHECK-NEXT:   %[[v4:.+]] = "gflow.add"(%arg3, %arg4) : (tensor<8x8x96xf32>, tensor<8x8x96xf32>) -> tensor<8x8x96xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v4]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8x96xf32>) -> ()
// CHECK-NEXT:   }) {gflow.group = "b7a51243a1bb", kind = "pointwise", operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8x96xf32>, tensor<8x8x96xf32>) -> tensor<8x8x96xf32>
// CHECK-NEXT:   return %[[v3]] : tensor<8x8x96xf32>
func.func @transposed(%x: tensor<64x32xf32>, %w: tensor<96x32xf32>, %z: tensor<8x8x96xf32>) -> tensor<8x8x96xf32> {
  %0 = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<96x32xf32>) -> tensor<32x96xf32>
  %1 = "gflow.matmul"(%x, %0) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
  %2 = "gflow.reshape"(%1) {shape = array<i64: 8, 8, 96>} : (tensor<64x96xf32>) -> tensor<8x8x96xf32>
  %3 = "gflow.add"(%2, %z) : (tensor<8x8x96xf32>, tensor<8x8x96xf32>) -> tensor<8x8x96xf32>
  return %3 : tensor<8x8x96xf32>
}

// Sums of columns, and a row of the product, as the middle of shifted sums.
// CHECK-LABEL: func.func @columns(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.matmul"(%arg0, %arg1) {gflow.group = "0132cbadf0f8"} : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.slice"(%[[v0]]) {limits = array<i64: 4, 96>, starts = array<i64: 3, 0>, strides = array<i64: 1, 1>} : (tensor<64x96xf32>) -> tensor<1x96xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.fused"(%[[v1]], %[[v0]]) ({
// CHECK-NEXT:   ^bb0(%arg2: tensor<1x96xf32>, %arg3: tensor<64x96xf32>):
// CHECK-NEXT:   %[[v3:.+]] = "gflow.broadcast"(%arg2) {dims = array<i64: 0, 1>, shape = array<i64: 64, 96>} : (tensor<1x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.sub"(%arg3, %[[v3]]) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.reduce"(%[[v4]]) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
// CHECK-NEXT:   "gflow.yield"(%[[v5]]) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<96xf32>) -> ()
// CHECK-NEXT:   }) {gflow.group = "0132cbadf0f8", kind = "column", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<1x96xf32>, tensor<64x96xf32>) -> tensor<96xf32>
// CHECK-NEXT:   return %[[v2]], %[[v0]] : tensor<96xf32>, tensor<64x96xf32>
func.func @columns(%x: tensor<64x32xf32>, %w: tensor<32x96xf32>) -> (tensor<96xf32>, tensor<64x96xf32>) {
  %p = "gflow.matmul"(%x, %w) : (tensor<64x32xf32>, tensor<32x96xf32>) -> tensor<64x96xf32>
  %m = "gflow.slice"(%p) {starts = array<i64: 3, 0>, limits = array<i64: 4, 96>, strides = array<i64: 1, 1>} : (tensor<64x96xf32>) -> tensor<1x96xf32>
  %b = "gflow.broadcast"(%m) {dims = array<i64: 0, 1>, shape = array<i64: 64, 96>} : (tensor<1x96xf32>) -> tensor<64x96xf32>
  %d = "gflow.sub"(%p, %b) : (tensor<64x96xf32>, tensor<64x96xf32>) -> tensor<64x96xf32>
  %s = "gflow.reduce"(%d) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x96xf32>) -> tensor<96xf32>
  return %s, %p : tensor<96xf32>, tensor<64x96xf32>
}

// Only a product's kernel sums its operand: it is no group.
// CHECK-LABEL: func.func @operand(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 1, 0>} : (tensor<512x64xbf16>) -> tensor<64x512xbf16>
// CHECK-NEXT:   %[[v1:.+]]:2 = "gflow.fused"(%arg1, %[[v0]]) ({
// CHECK-NEXT:   ^bb0(%arg2: tensor<512x32xbf16>, %arg3: tensor<64x512xbf16>):
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%arg3, %arg2) : (tensor<64x512xbf16>, tensor<512x32xbf16>) -> tensor<64x32xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.exp"(%[[v2]]) : (tensor<64x32xbf16>) -> tensor<64x32xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convert"(%arg3) {dtype = "f32"} : (tensor<64x512xbf16>) -> tensor<64x512xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.reduce"(%[[v4]]) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x512xf32>) -> tensor<64xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%[[v5]]) {dtype = "bf16"} : (tensor<64xf32>) -> tensor<64xbf16>
// CHECK-NEXT:   "gflow.yield"(%[[v3]], %[[v6]]) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<64x32xbf16>, tensor<64xbf16>) -> ()
// CHECK-NEXT:   }) {kind = "contraction", operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<512x32xbf16>, tensor<64x512xbf16>) -> (tensor<64x32xbf16>, tensor<64xbf16>)
// CHECK-NEXT:   return %[[v1]]#0, %[[v1]]#1 : tensor<64x32xbf16>, tensor<64xbf16>
func.func @operand(%g: tensor<512x64xbf16>, %x: tensor<512x32xbf16>) -> (tensor<64x32xbf16>, tensor<64xbf16>) {
  %t = "gflow.transpose"(%g) {permutation = array<i64: 1, 0>} : (tensor<512x64xbf16>) -> tensor<64x512xbf16>
  %w = "gflow.matmul"(%t, %x) : (tensor<64x512xbf16>, tensor<512x32xbf16>) -> tensor<64x32xbf16>
  %e = "gflow.exp"(%w) : (tensor<64x32xbf16>) -> tensor<64x32xbf16>
  %c = "gflow.convert"(%g) {dtype = "f32"} : (tensor<512x64xbf16>) -> tensor<512x64xf32>
  %s = "gflow.reduce"(%c) {dims = array<i64: 0>, kind = "sum"} : (tensor<512x64xf32>) -> tensor<64xf32>
  %h = "gflow.convert"(%s) {dtype = "bf16"} : (tensor<64xf32>) -> tensor<64xbf16>
  return %e, %h : tensor<64x32xbf16>, tensor<64xbf16>
}
