// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-amp{dtype=bf16},cse))' | FileCheck %s

// Allow: a contraction takes and gives halves. Promote: what follows is computed in float32.
// CHECK-LABEL: func.func @promote(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<8x4xf32>) -> tensor<8x4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<2x8xbf16>, tensor<8x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.add"(%[[v3]], %arg2) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.tanh"(%[[v4]]) : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v5]] : tensor<2x4xf32>
func.func @promote(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>, %b: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.add"(%0, %b) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = "gflow.tanh"(%1) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}

// Between two contractions one rounding, at the end of the float32 ops.
// CHECK-LABEL: func.func @between(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<8x4xf32>) -> tensor<8x4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<2x8xbf16>, tensor<8x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.sigmoid"(%[[v3]]) : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.mul"(%[[v4]], %[[v3]]) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%[[v5]]) {dtype = "bf16"} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.matmul"(%[[v6]], %[[v7]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.convert"(%[[v8]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v9]] : tensor<2x4xf32>
func.func @between(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>, %v: tensor<4x4xf32>) -> tensor<2x4xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.sigmoid"(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = "gflow.mul"(%1, %0) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = "gflow.matmul"(%2, %v) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}

// Clear: exact ops run on the halves; no float32 value is left between the contractions.
// CHECK-LABEL: func.func @clear(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<8x4xf32>) -> tensor<8x4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<2x8xbf16>, tensor<8x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<2x4xbf16>} : () -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.maximum"(%[[v2]], %[[v3]]) : (tensor<2x4xbf16>, tensor<2x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.compare"(%[[v4]], %[[v3]]) {predicate = "gt"} : (tensor<2x4xbf16>, tensor<2x4xbf16>) -> tensor<2x4xi1>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.matmul"(%[[v4]], %[[v6]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.convert"(%[[v7]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v8]], %[[v5]] : tensor<2x4xf32>, tensor<2x4xi1>
func.func @clear(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>, %v: tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xi1>) {
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.maximum"(%0, %zero) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = "gflow.compare"(%1, %zero) {predicate = "gt"} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xi1>
  %3 = "gflow.matmul"(%1, %v) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %3, %2 : tensor<2x4xf32>, tensor<2x4xi1>
}

// A promote op of halves, whose result is kept as a half, needs no casts: it gives the same bits.
// CHECK-LABEL: func.func @sum_of_halves(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%[[v0]], %[[v3]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.add"(%[[v2]], %[[v4]]) : (tensor<2x4xbf16>, tensor<2x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.matmul"(%[[v5]], %[[v1]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.convert"(%[[v6]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v7]] : tensor<2x4xf32>
func.func @sum_of_halves(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>, %v: tensor<4x4xf32>) -> tensor<2x4xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.matmul"(%x, %v) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %2 = "gflow.add"(%0, %1) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %3 = "gflow.matmul"(%2, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}

// Deny: a softmax is float32 all through, and rounded once for the product.
// CHECK-LABEL: func.func @softmax(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<8x4xf32>) -> tensor<8x4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<2x8xbf16>, tensor<8x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.reduce"(%[[v2]]) {dims = array<i64: 1>, kind = "max"} : (tensor<2x4xbf16>) -> tensor<2xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.convert"(%[[v3]]) {dtype = "f32"} : (tensor<2xbf16>) -> tensor<2xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.broadcast"(%[[v5]]) {dims = array<i64: 0>, shape = array<i64: 2, 4>} : (tensor<2xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.sub"(%[[v4]], %[[v6]]) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.exp"(%[[v7]]) : (tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.reduce"(%[[v8]]) {dims = array<i64: 1>, kind = "sum"} : (tensor<2x4xf32>) -> tensor<2xf32>
// CHECK-NEXT:   %[[v10:.+]] = "gflow.broadcast"(%[[v9]]) {dims = array<i64: 0>, shape = array<i64: 2, 4>} : (tensor<2xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v11:.+]] = "gflow.div"(%[[v8]], %[[v10]]) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v12:.+]] = "gflow.convert"(%[[v11]]) {dtype = "bf16"} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v13:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v14:.+]] = "gflow.matmul"(%[[v12]], %[[v13]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v15:.+]] = "gflow.convert"(%[[v14]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v15]] : tensor<2x4xf32>
func.func @softmax(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>, %v: tensor<4x4xf32>) -> tensor<2x4xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.reduce"(%0) {kind = "max", dims = array<i64: 1>} : (tensor<2x4xf32>) -> tensor<2xf32>
  %2 = "gflow.broadcast"(%1) {shape = array<i64: 2, 4>, dims = array<i64: 0>} : (tensor<2xf32>) -> tensor<2x4xf32>
  %3 = "gflow.sub"(%0, %2) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %4 = "gflow.exp"(%3) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %5 = "gflow.reduce"(%4) {kind = "sum", dims = array<i64: 1>} : (tensor<2x4xf32>) -> tensor<2xf32>
  %6 = "gflow.broadcast"(%5) {shape = array<i64: 2, 4>, dims = array<i64: 0>} : (tensor<2xf32>) -> tensor<2x4xf32>
  %7 = "gflow.div"(%4, %6) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %8 = "gflow.matmul"(%7, %v) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %8 : tensor<2x4xf32>
}

// A residual stream that starts in float32 stays so; contractions get a half of it.
// CHECK-LABEL: func.func @residual(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.add"(%arg0, %[[v3]]) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.convert"(%[[v4]]) {dtype = "bf16"} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.matmul"(%[[v5]], %[[v6]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.convert"(%[[v7]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.add"(%[[v4]], %[[v8]]) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v9]] : tensor<2x4xf32>
func.func @residual(%x: tensor<2x4xf32>, %w: tensor<4x4xf32> {gflow.role = "parameter"}, %v: tensor<4x4xf32> {gflow.role = "parameter"}) -> tensor<2x4xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.add"(%x, %0) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = "gflow.matmul"(%1, %v) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %3 = "gflow.add"(%1, %2) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %3 : tensor<2x4xf32>
}

// A batch norm of a convolution is computed in float32 with float32 statistics, and kept as a half: the value
// before the ReLU, which forward and backward read.
// CHECK-LABEL: func.func @normalized(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x3x4x4xf32>) -> tensor<2x3x4x4xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4x3x1x1xf32>) -> tensor<4x3x1x1xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x3x4x4xbf16>, tensor<4x3x1x1xbf16>) -> tensor<2x4x4x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.broadcast"(%arg3) {dims = array<i64: 1>, shape = array<i64: 2, 4, 4, 4>} : (tensor<4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<2x4x4x4xbf16>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.sub"(%[[v4]], %[[v3]]) : (tensor<2x4x4x4xf32>, tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%[[v5]]) {dtype = "bf16"} : (tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xbf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<2x4x4x4xbf16>} : () -> tensor<2x4x4x4xbf16>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.maximum"(%[[v6]], %[[v7]]) : (tensor<2x4x4x4xbf16>, tensor<2x4x4x4xbf16>) -> tensor<2x4x4x4xbf16>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<4x4x1x1xf32>) -> tensor<4x4x1x1xbf16>
// CHECK-NEXT:   %[[v10:.+]] = "gflow.convolution"(%[[v8]], %[[v9]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x4x4x4xbf16>, tensor<4x4x1x1xbf16>) -> tensor<2x4x4x4xbf16>
// CHECK-NEXT:   %[[v11:.+]] = "gflow.compare"(%[[v6]], %[[v7]]) {predicate = "le"} : (tensor<2x4x4x4xbf16>, tensor<2x4x4x4xbf16>) -> tensor<2x4x4x4xi1>
// CHECK-NEXT:   %[[v12:.+]] = "gflow.convert"(%[[v10]]) {dtype = "f32"} : (tensor<2x4x4x4xbf16>) -> tensor<2x4x4x4xf32>
// CHECK-NEXT:   return %[[v12]], %[[v11]] : tensor<2x4x4x4xf32>, tensor<2x4x4x4xi1>
func.func @normalized(%x: tensor<2x3x4x4xf32>, %w: tensor<4x3x1x1xf32>, %v: tensor<4x4x1x1xf32>, %mean: tensor<4xf32>) -> (tensor<2x4x4x4xf32>, tensor<2x4x4x4xi1>) {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x4x4xf32>, tensor<4x3x1x1xf32>) -> tensor<2x4x4x4xf32>
  %1 = "gflow.broadcast"(%mean) {shape = array<i64: 2, 4, 4, 4>, dims = array<i64: 1>} : (tensor<4xf32>) -> tensor<2x4x4x4xf32>
  %2 = "gflow.sub"(%0, %1) : (tensor<2x4x4x4xf32>, tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<2x4x4x4xf32>} : () -> tensor<2x4x4x4xf32>
  %3 = "gflow.maximum"(%2, %zero) : (tensor<2x4x4x4xf32>, tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xf32>
  %4 = "gflow.convolution"(%3, %v) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x4x4x4xf32>, tensor<4x4x1x1xf32>) -> tensor<2x4x4x4xf32>
  %5 = "gflow.compare"(%2, %zero) {predicate = "le"} : (tensor<2x4x4x4xf32>, tensor<2x4x4x4xf32>) -> tensor<2x4x4x4xi1>
  return %4, %5 : tensor<2x4x4x4xf32>, tensor<2x4x4x4xi1>
}

// Constants that a half does not hold exactly are not rounded: the op stays in float32.
// CHECK-LABEL: func.func @inexact_constant(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.000000e-01> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.matmul"(%[[v1]], %[[v2]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convert"(%[[v3]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.maximum"(%[[v4]], %[[v0]]) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%[[v5]]) {dtype = "bf16"} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.matmul"(%[[v6]], %[[v2]]) : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.convert"(%[[v7]]) {dtype = "f32"} : (tensor<2x4xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v8]] : tensor<2x4xf32>
func.func @inexact_constant(%x: tensor<2x4xf32>, %w: tensor<4x4xf32>) -> tensor<2x4xf32> {
  %c = "gflow.constant"() {value = dense<0.1> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = "gflow.maximum"(%0, %c) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %2 = "gflow.matmul"(%1, %w) : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}

// Pooling: a mean is arithmetic, which goes on in float32 here; maxima are exact, so their operand is rounded where it
// is made, large as it is, since nothing else needs its digits.
// CHECK-LABEL: func.func @pooling(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<2x9x9x3xf32>) -> tensor<2x9x9x3xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4x3x3x3xf32>) -> tensor<4x3x3x3xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x9x9x3xbf16>, tensor<4x3x3x3xbf16>) -> tensor<2x9x9x4xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<2x9x9x4xbf16>) -> tensor<2x9x9x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.avg_pool"(%[[v3]]) {kernel = array<i64: 2, 2>, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x9x9x4xf32>) -> tensor<2x8x8x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.exp"(%[[v4]]) : (tensor<2x8x8x4xf32>) -> tensor<2x8x8x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%[[v5]]) {dtype = "bf16"} : (tensor<2x8x8x4xf32>) -> tensor<2x8x8x4xbf16>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.max_pool"(%[[v6]]) {kernel = array<i64: 2, 2>, layout = "N*C", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, padding = array<i64: 0, 0>, positions = "none", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, stride = array<i64: 2, 2>} : (tensor<2x8x8x4xbf16>) -> tensor<2x4x4x4xbf16>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<4x3x3x4xf32>) -> tensor<4x3x3x4xbf16>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.convolution"(%[[v7]], %[[v8]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x4x4x4xbf16>, tensor<4x3x3x4xbf16>) -> tensor<2x2x2x4xbf16>
// CHECK-NEXT:   %[[v10:.+]] = "gflow.convert"(%[[v9]]) {dtype = "f32"} : (tensor<2x2x2x4xbf16>) -> tensor<2x2x2x4xf32>
// CHECK-NEXT:   return %[[v10]] : tensor<2x2x2x4xf32>
func.func @pooling(%x: tensor<2x9x9x3xf32>, %w: tensor<4x3x3x3xf32>, %v: tensor<4x3x3x4xf32>) -> tensor<2x2x2x4xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<2x9x9x3xf32>, tensor<4x3x3x3xf32>) -> tensor<2x9x9x4xf32>
  %1 = "gflow.avg_pool"(%0) {kernel = array<i64: 2, 2>, stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, layout = "N*C"} : (tensor<2x9x9x4xf32>) -> tensor<2x8x8x4xf32>
  %2 = "gflow.exp"(%1) : (tensor<2x8x8x4xf32>) -> tensor<2x8x8x4xf32>
  %3 = "gflow.max_pool"(%2) {kernel = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>, layout = "N*C", positions = "none", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x8x8x4xf32>) -> tensor<2x4x4x4xf32>
  %4 = "gflow.convolution"(%3, %v) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<2x4x4x4xf32>, tensor<4x3x3x4xf32>) -> tensor<2x2x2x4xf32>
  return %4 : tensor<2x2x2x4xf32>
}
