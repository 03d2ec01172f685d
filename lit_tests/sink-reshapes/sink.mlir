// RUN: %gflow-opt %s --gflow-sink-reshapes | FileCheck %s

// A bias between two products: no reshape is left.
// CHECK-LABEL: func.func @bias(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.matmul"(%arg0, %arg1) : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%arg2) {dims = array<i64: 1>, shape = array<i64: 8, 16>} : (tensor<16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.add"(%[[v0]], %[[v1]]) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.matmul"(%[[v2]], %arg3) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
// CHECK-NEXT:   return %[[v3]] : tensor<8x4xf32>
func.func @bias(%x: tensor<8x4xf32>, %w: tensor<4x16xf32>, %b: tensor<16xf32>, %v: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %2 = "gflow.broadcast"(%b) {dims = array<i64: 2>, shape = array<i64: 2, 4, 16>} : (tensor<16xf32>) -> tensor<2x4x16xf32>
  %3 = "gflow.add"(%1, %2) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %4 = "gflow.reshape"(%3) {shape = array<i64: 8, 16>} : (tensor<2x4x16xf32>) -> tensor<8x16xf32>
  %5 = "gflow.matmul"(%4, %v) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %5 : tensor<8x4xf32>
}

// A norm over channels: its statistics are split no sooner than they have to be.
// CHECK-LABEL: func.func @norm(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reduce"(%arg0) {dims = array<i64: 1>, kind = "sum"} : (tensor<8x16xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%[[v0]]) {dims = array<i64: 0>, shape = array<i64: 8, 16>} : (tensor<8xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.sub"(%arg0, %[[v1]]) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.reshape"(%[[v2]]) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   return %[[v3]] : tensor<2x4x16xf32>
func.func @norm(%x: tensor<8x16xf32>) -> tensor<2x4x16xf32> {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %1 = "gflow.reduce"(%0) {dims = array<i64: 2>, kind = "sum"} : (tensor<2x4x16xf32>) -> tensor<2x4xf32>
  %2 = "gflow.reshape"(%1) {shape = array<i64: 2, 4, 1>} : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0, 1, 2>, shape = array<i64: 2, 4, 16>} : (tensor<2x4x1xf32>) -> tensor<2x4x16xf32>
  %4 = "gflow.sub"(%0, %3) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  return %4 : tensor<2x4x16xf32>
}

// A table of positions repeats along half of a joined dimension: nothing to be done.
// CHECK-LABEL: func.func @positions(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg0) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%arg1) {dims = array<i64: 1, 2>, shape = array<i64: 2, 4, 16>} : (tensor<4x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.add"(%[[v0]], %[[v1]]) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   return %[[v2]] : tensor<2x4x16xf32>
func.func @positions(%x: tensor<8x16xf32>, %p: tensor<4x16xf32>) -> tensor<2x4x16xf32> {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %1 = "gflow.broadcast"(%p) {dims = array<i64: 1, 2>, shape = array<i64: 2, 4, 16>} : (tensor<4x16xf32>) -> tensor<2x4x16xf32>
  %2 = "gflow.add"(%0, %1) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  return %2 : tensor<2x4x16xf32>
}

// A dropout's numbers go by position in memory, so they are the same in either shape.
// CHECK-LABEL: func.func @dropout(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.random"(%arg1) {dtype = "f32", kind = "uniform", shape = array<i64: 8, 16>, stream = 3 : i64} : (tensor<2xi64>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.mul"(%arg0, %[[v0]]) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.reshape"(%[[v1]]) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   return %[[v2]] : tensor<2x4x16xf32>
func.func @dropout(%x: tensor<8x16xf32>, %rng: tensor<2xi64>) -> tensor<2x4x16xf32> {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %1 = "gflow.random"(%rng) {dtype = "f32", kind = "uniform", shape = array<i64: 2, 4, 16>, stream = 3 : i64} : (tensor<2xi64>) -> tensor<2x4x16xf32>
  %2 = "gflow.mul"(%0, %1) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  return %2 : tensor<2x4x16xf32>
}

// Rows are looked up by a flat index. What was transposed cannot be joined without a copy.
// CHECK-LABEL: func.func @views(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 8>} : (tensor<2x4xi64>) -> tensor<8xi64>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.take"(%arg0, %[[v0]]) {dim = 0 : i64} : (tensor<9x16xf32>, tensor<8xi64>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.exp"(%[[v1]]) : (tensor<8x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.reshape"(%[[v2]]) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.transpose"(%arg2) {permutation = array<i64: 1, 0, 2>} : (tensor<4x2x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.add"(%[[v3]], %[[v4]]) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
// CHECK-NEXT:   return %[[v3]], %[[v5]] : tensor<2x4x16xf32>, tensor<2x4x16xf32>
func.func @views(%t: tensor<9x16xf32>, %i: tensor<2x4xi64>, %y: tensor<4x2x16xf32>) -> (tensor<2x4x16xf32>, tensor<2x4x16xf32>) {
  %0 = "gflow.take"(%t, %i) {dim = 0 : i64} : (tensor<9x16xf32>, tensor<2x4xi64>) -> tensor<2x4x16xf32>
  %1 = "gflow.exp"(%0) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %2 = "gflow.transpose"(%y) {permutation = array<i64: 1, 0, 2>} : (tensor<4x2x16xf32>) -> tensor<2x4x16xf32>
  %3 = "gflow.add"(%1, %2) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  return %1, %3 : tensor<2x4x16xf32>, tensor<2x4x16xf32>
}

// A widened value is read in both shapes, and so is a row's normalized value: only halves are reshaped.
// CHECK-LABEL: func.func @widened(
// CHECK: %[[e:.+]] = "gflow.exp"(%arg0)
// CHECK: %[[r:.+]] = "gflow.reshape"(%[[e]]) {shape = array<i64: 8, 16>} : (tensor<2x4x16xbf16>) -> tensor<8x16xbf16>
// CHECK-NEXT: %[[w:.+]] = "gflow.convert"(%[[r]]) {dtype = "f32"}
// CHECK-NEXT: %[[m:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 8>}
// CHECK-NEXT: %[[b:.+]] = "gflow.broadcast"(%[[m]]) {dims = array<i64: 0>, shape = array<i64: 8, 16>}
// CHECK-NEXT: %[[s:.+]] = "gflow.sub"(%[[w]], %[[b]])
// CHECK-NEXT: "gflow.matmul"(%[[s]], %arg2)
func.func @widened(%x: tensor<2x4x16xbf16>, %m: tensor<2x4xf32>, %v: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<2x4x16xf32>) {
  %0 = "gflow.exp"(%x) : (tensor<2x4x16xbf16>) -> tensor<2x4x16xbf16>
  %1 = "gflow.convert"(%0) {dtype = "f32"} : (tensor<2x4x16xbf16>) -> tensor<2x4x16xf32>
  %2 = "gflow.broadcast"(%m) {dims = array<i64: 0, 1>, shape = array<i64: 2, 4, 16>} : (tensor<2x4xf32>) -> tensor<2x4x16xf32>
  %3 = "gflow.sub"(%1, %2) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %4 = "gflow.reshape"(%3) {shape = array<i64: 8, 16>} : (tensor<2x4x16xf32>) -> tensor<8x16xf32>
  %5 = "gflow.matmul"(%4, %v) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %5, %3 : tensor<8x4xf32>, tensor<2x4x16xf32>
}

// What is computed from a half-precision value that others read, too, is computed again in the product's shape.
// CHECK-LABEL: func.func @recomputed(
// CHECK:      %[[e:.+]] = "gflow.exp"(%arg0)
// CHECK:      %[[s:.+]] = "gflow.sub"({{.*}}) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
// CHECK-DAG:  %[[r:.+]] = "gflow.reshape"(%[[e]]) {shape = array<i64: 8, 16>} : (tensor<2x4x16xbf16>) -> tensor<8x16xbf16>
// CHECK:      %[[n:.+]] = "gflow.neg"({{.*}}) : (tensor<8x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT: %[[d:.+]] = "gflow.sub"(%arg2, %[[n]]) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT: return %[[d]], %[[s]]
func.func @recomputed(%x: tensor<2x4x16xbf16>, %m: tensor<2x4xf32>, %g: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<2x4x16xf32>) {
  %0 = "gflow.exp"(%x) : (tensor<2x4x16xbf16>) -> tensor<2x4x16xbf16>
  %1 = "gflow.convert"(%0) {dtype = "f32"} : (tensor<2x4x16xbf16>) -> tensor<2x4x16xf32>
  %2 = "gflow.broadcast"(%m) {dims = array<i64: 0, 1>, shape = array<i64: 2, 4, 16>} : (tensor<2x4xf32>) -> tensor<2x4x16xf32>
  %3 = "gflow.sub"(%1, %2) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %4 = "gflow.neg"(%3) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %5 = "gflow.reshape"(%g) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %6 = "gflow.sub"(%5, %4) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %7 = "gflow.reshape"(%6) {shape = array<i64: 8, 16>} : (tensor<2x4x16xf32>) -> tensor<8x16xf32>
  return %7, %3 : tensor<8x16xf32>, tensor<2x4x16xf32>
}

// What nothing else reads is left to the kernel that computes it.
// CHECK-LABEL: func.func @own(
// CHECK:      "gflow.sub"({{.*}}) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
func.func @own(%x: tensor<2x4x16xbf16>, %g: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "gflow.exp"(%x) : (tensor<2x4x16xbf16>) -> tensor<2x4x16xbf16>
  %1 = "gflow.convert"(%0) {dtype = "f32"} : (tensor<2x4x16xbf16>) -> tensor<2x4x16xf32>
  %2 = "gflow.neg"(%1) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %3 = "gflow.reshape"(%g) {shape = array<i64: 2, 4, 16>} : (tensor<8x16xf32>) -> tensor<2x4x16xf32>
  %4 = "gflow.sub"(%3, %2) : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
  %5 = "gflow.reshape"(%4) {shape = array<i64: 8, 16>} : (tensor<2x4x16xf32>) -> tensor<8x16xf32>
  return %5 : tensor<8x16xf32>
}
