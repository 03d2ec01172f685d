// RUN: %gflow-opt %s | %gflow-opt | FileCheck %s

// Every op reads back as it was printed.

// CHECK-LABEL: func.func @constant(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3xf32>
func.func @constant() -> tensor<2x3xf32> {
  %0 = "gflow.constant"() {value = dense<1.000000e+00> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @iota(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 2, 3>} : () -> tensor<2x3xi64>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3xi64>
func.func @iota() -> tensor<2x3xi64> {
  %0 = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 2, 3>} : () -> tensor<2x3xi64>
  return %0 : tensor<2x3xi64>
}

// CHECK-LABEL: func.func @reshape(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg0) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<6xf32>
func.func @reshape(%arg0: tensor<2x3xf32>) -> tensor<6xf32> {
  %0 = "gflow.reshape"(%arg0) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
  return %0 : tensor<6xf32>
}

// CHECK-LABEL: func.func @transpose(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4x2x3xf32>
func.func @transpose(%arg0: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {
  %0 = "gflow.transpose"(%arg0) {permutation = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  return %0 : tensor<4x2x3xf32>
}

// CHECK-LABEL: func.func @broadcast(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 1>, shape = array<i64: 2, 3>} : (tensor<3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3xf32>
func.func @broadcast(%arg0: tensor<3xf32>) -> tensor<2x3xf32> {
  %0 = "gflow.broadcast"(%arg0) {dims = array<i64: 1>, shape = array<i64: 2, 3>} : (tensor<3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @slice(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 7, 6>, starts = array<i64: 1, 0>, strides = array<i64: 2, 1>} : (tensor<8x6xf32>) -> tensor<3x6xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<3x6xf32>
func.func @slice(%arg0: tensor<8x6xf32>) -> tensor<3x6xf32> {
  %0 = "gflow.slice"(%arg0) {limits = array<i64: 7, 6>, starts = array<i64: 1, 0>, strides = array<i64: 2, 1>} : (tensor<8x6xf32>) -> tensor<3x6xf32>
  return %0 : tensor<3x6xf32>
}

// CHECK-LABEL: func.func @pad(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.pad"(%arg0, %arg1) {high = array<i64: 0, 2>, low = array<i64: 0, 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x6xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x6xf32>
func.func @pad(%arg0: tensor<2x3xf32>, %arg1: tensor<f32>) -> tensor<2x6xf32> {
  %0 = "gflow.pad"(%arg0, %arg1) {high = array<i64: 0, 2>, low = array<i64: 0, 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x6xf32>
  return %0 : tensor<2x6xf32>
}

// CHECK-LABEL: func.func @concatenate(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.concatenate"(%arg0, %arg1) {dim = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x4xf32>
func.func @concatenate(%arg0: tensor<2x3xf32>, %arg1: tensor<2x1xf32>) -> tensor<2x4xf32> {
  %0 = "gflow.concatenate"(%arg0, %arg1) {dim = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// CHECK-LABEL: func.func @reverse(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reverse"(%arg0) {dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3xf32>
func.func @reverse(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = "gflow.reverse"(%arg0) {dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @take(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.take"(%arg0, %arg1) {dim = 0 : i64} : (tensor<10x4xf32>, tensor<2x3xi64>) -> tensor<2x3x4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3x4xf32>
func.func @take(%arg0: tensor<10x4xf32>, %arg1: tensor<2x3xi64>) -> tensor<2x3x4xf32> {
  %0 = "gflow.take"(%arg0, %arg1) {dim = 0 : i64} : (tensor<10x4xf32>, tensor<2x3xi64>) -> tensor<2x3x4xf32>
  return %0 : tensor<2x3x4xf32>
}

// CHECK-LABEL: func.func @gather(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.gather"(%arg0, %arg1) {dim = 1 : i64} : (tensor<5x4xf32>, tensor<5x2xi64>) -> tensor<5x2xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<5x2xf32>
func.func @gather(%arg0: tensor<5x4xf32>, %arg1: tensor<5x2xi64>) -> tensor<5x2xf32> {
  %0 = "gflow.gather"(%arg0, %arg1) {dim = 1 : i64} : (tensor<5x4xf32>, tensor<5x2xi64>) -> tensor<5x2xf32>
  return %0 : tensor<5x2xf32>
}

// CHECK-LABEL: func.func @index_add(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.index_add"(%arg0, %arg1, %arg2) {dim = 0 : i64} : (tensor<10x4xf32>, tensor<3xi64>, tensor<3x4xf32>) -> tensor<10x4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<10x4xf32>
func.func @index_add(%arg0: tensor<10x4xf32>, %arg1: tensor<3xi64>, %arg2: tensor<3x4xf32>) -> tensor<10x4xf32> {
  %0 = "gflow.index_add"(%arg0, %arg1, %arg2) {dim = 0 : i64} : (tensor<10x4xf32>, tensor<3xi64>, tensor<3x4xf32>) -> tensor<10x4xf32>
  return %0 : tensor<10x4xf32>
}

// CHECK-LABEL: func.func @index_copy(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.index_copy"(%arg0, %arg1, %arg2) {dim = 1 : i64} : (tensor<2x10x4xf32>, tensor<3xi64>, tensor<2x3x4xf32>) -> tensor<2x10x4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x10x4xf32>
func.func @index_copy(%arg0: tensor<2x10x4xf32>, %arg1: tensor<3xi64>, %arg2: tensor<2x3x4xf32>) -> tensor<2x10x4xf32> {
  %0 = "gflow.index_copy"(%arg0, %arg1, %arg2) {dim = 1 : i64} : (tensor<2x10x4xf32>, tensor<3xi64>, tensor<2x3x4xf32>) -> tensor<2x10x4xf32>
  return %0 : tensor<2x10x4xf32>
}

// CHECK-LABEL: func.func @put(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.put"(%arg0, %arg1, %arg2) : (tensor<3x4xf32>, tensor<3xi64>, tensor<3xf32>) -> tensor<3x4xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<3x4xf32>
func.func @put(%arg0: tensor<3x4xf32>, %arg1: tensor<3xi64>, %arg2: tensor<3xf32>) -> tensor<3x4xf32> {
  %0 = "gflow.put"(%arg0, %arg1, %arg2) : (tensor<3x4xf32>, tensor<3xi64>, tensor<3xf32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}
