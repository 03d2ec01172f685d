// RUN: %gflow-opt %s --gflow-simplify | FileCheck %s

// CHECK-LABEL: func.func @constants(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<2.000000e+00> : tensor<2x2xf32>} : () -> tensor<2x2xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<2.000000e+00> : tensor<4x2x3xf32>} : () -> tensor<4x2x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<2.000000e+00> : tensor<3x2xf32>} : () -> tensor<3x2xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.constant"() {value = dense<2.000000e+00> : tensor<6xf32>} : () -> tensor<6xf32>
// CHECK-NEXT:   return %[[v3]], %[[v2]], %[[v1]], %[[v0]] : tensor<6xf32>, tensor<3x2xf32>, tensor<4x2x3xf32>, tensor<2x2xf32>
func.func @constants() -> (tensor<6xf32>, tensor<3x2xf32>, tensor<4x2x3xf32>, tensor<2x2xf32>) {
  %a = "gflow.constant"() {value = dense<2.0> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
  %0 = "gflow.reshape"(%a) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
  %1 = "gflow.transpose"(%a) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %2 = "gflow.broadcast"(%a) {shape = array<i64: 4, 2, 3>, dims = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<4x2x3xf32>
  %3 = "gflow.slice"(%a) {starts = array<i64: 0, 1>, limits = array<i64: 2, 3>, strides = array<i64: 1, 1>} : (tensor<2x3xf32>) -> tensor<2x2xf32>
  return %0, %1, %2, %3 : tensor<6xf32>, tensor<3x2xf32>, tensor<4x2x3xf32>, tensor<2x2xf32>
}

// CHECK-LABEL: func.func @reshape(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg0) {shape = array<i64: 3, 2>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
// CHECK-NEXT:   return %arg0, %[[v0]], %arg0 : tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x3xf32>
func.func @reshape(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x3xf32>) {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 2, 3>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %a = "gflow.reshape"(%x) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
  %1 = "gflow.reshape"(%a) {shape = array<i64: 3, 2>} : (tensor<6xf32>) -> tensor<3x2xf32>
  %2 = "gflow.reshape"(%a) {shape = array<i64: 2, 3>} : (tensor<6xf32>) -> tensor<2x3xf32>
  return %0, %1, %2 : tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x3xf32>
}

// CHECK-LABEL: func.func @one_element(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg0) {shape = array<i64>} : (tensor<1x1xf32>) -> tensor<f32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%[[v0]]) {dims = array<i64>, shape = array<i64: 6>} : (tensor<f32>) -> tensor<6xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.broadcast"(%[[v0]]) {dims = array<i64>, shape = array<i64: 3, 2>} : (tensor<f32>) -> tensor<3x2xf32>
// CHECK-NEXT:   return %[[v1]], %[[v2]] : tensor<6xf32>, tensor<3x2xf32>
func.func @one_element(%x: tensor<1x1xf32>) -> (tensor<6xf32>, tensor<3x2xf32>) {
  %a = "gflow.broadcast"(%x) {shape = array<i64: 2, 3>, dims = array<i64: 0, 1>} : (tensor<1x1xf32>) -> tensor<2x3xf32>
  %0 = "gflow.reshape"(%a) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
  %1 = "gflow.transpose"(%a) {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  return %0, %1 : tensor<6xf32>, tensor<3x2xf32>
}

// CHECK-LABEL: func.func @reshape_of_broadcast(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 1>, shape = array<i64: 2, 3>} : (tensor<3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 2>, shape = array<i64: 2, 1, 3, 1>} : (tensor<3xf32>) -> tensor<2x1x3x1xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.reshape"(%[[v0]]) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
// CHECK-NEXT:   return %[[v1]], %[[v2]] : tensor<2x1x3x1xf32>, tensor<6xf32>
func.func @reshape_of_broadcast(%x: tensor<3xf32>) -> (tensor<2x1x3x1xf32>, tensor<6xf32>) {
  %a = "gflow.broadcast"(%x) {shape = array<i64: 2, 3>, dims = array<i64: 1>} : (tensor<3xf32>) -> tensor<2x3xf32>
  %0 = "gflow.reshape"(%a) {shape = array<i64: 2, 1, 3, 1>} : (tensor<2x3xf32>) -> tensor<2x1x3x1xf32>
  %1 = "gflow.reshape"(%a) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
  return %0, %1 : tensor<2x1x3x1xf32>, tensor<6xf32>
}

// CHECK-LABEL: func.func @transpose(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 2, 1, 0>} : (tensor<2x3x4xf32>) -> tensor<4x3x2xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 1, 2, 4>} : (tensor<2x1x4xf32>) -> tensor<1x2x4xf32>
// CHECK-NEXT:   return %arg0, %arg0, %[[v0]], %[[v1]] : tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<4x3x2xf32>, tensor<1x2x4xf32>
func.func @transpose(%x: tensor<2x3x4xf32>, %y: tensor<2x1x4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<4x3x2xf32>, tensor<1x2x4xf32>) {
  %0 = "gflow.transpose"(%x) {permutation = array<i64: 0, 1, 2>} : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %a = "gflow.transpose"(%x) {permutation = array<i64: 1, 2, 0>} : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
  %1 = "gflow.transpose"(%a) {permutation = array<i64: 2, 0, 1>} : (tensor<3x4x2xf32>) -> tensor<2x3x4xf32>
  %2 = "gflow.transpose"(%a) {permutation = array<i64: 1, 0, 2>} : (tensor<3x4x2xf32>) -> tensor<4x3x2xf32>
  %3 = "gflow.transpose"(%y) {permutation = array<i64: 1, 0, 2>} : (tensor<2x1x4xf32>) -> tensor<1x2x4xf32>
  return %0, %1, %2, %3 : tensor<2x3x4xf32>, tensor<2x3x4xf32>, tensor<4x3x2xf32>, tensor<1x2x4xf32>
}

// CHECK-LABEL: func.func @transpose_of_broadcast(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 1, 0>} : (tensor<3x4xf32>) -> tensor<4x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%[[v0]]) {dims = array<i64: 0, 2>, shape = array<i64: 4, 2, 3>} : (tensor<4x3xf32>) -> tensor<4x2x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 0, 2>, shape = array<i64: 3, 2, 4>} : (tensor<3x4xf32>) -> tensor<3x2x4xf32>
// CHECK-NEXT:   return %[[v1]], %[[v2]] : tensor<4x2x3xf32>, tensor<3x2x4xf32>
func.func @transpose_of_broadcast(%x: tensor<3x4xf32>) -> (tensor<4x2x3xf32>, tensor<3x2x4xf32>) {
  %a = "gflow.broadcast"(%x) {shape = array<i64: 2, 3, 4>, dims = array<i64: 1, 2>} : (tensor<3x4xf32>) -> tensor<2x3x4xf32>
  %0 = "gflow.transpose"(%a) {permutation = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  %1 = "gflow.transpose"(%a) {permutation = array<i64: 1, 0, 2>} : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
  return %0, %1 : tensor<4x2x3xf32>, tensor<3x2x4xf32>
}

// CHECK-LABEL: func.func @broadcast(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 2>, shape = array<i64: 5, 2, 3>} : (tensor<3xf32>) -> tensor<5x2x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reshape"(%arg0) {shape = array<i64: 3, 1>} : (tensor<3xf32>) -> tensor<3x1xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 1>, shape = array<i64: 4, 3, 5>} : (tensor<3xf32>) -> tensor<4x3x5xf32>
// CHECK-NEXT:   return %arg0, %[[v0]], %[[v1]], %[[v2]] : tensor<3xf32>, tensor<5x2x3xf32>, tensor<3x1xf32>, tensor<4x3x5xf32>
func.func @broadcast(%x: tensor<3xf32>, %y: tensor<2x1xf32>) -> (tensor<3xf32>, tensor<5x2x3xf32>, tensor<3x1xf32>, tensor<4x3x5xf32>) {
  %0 = "gflow.broadcast"(%x) {shape = array<i64: 3>, dims = array<i64: 0>} : (tensor<3xf32>) -> tensor<3xf32>
  %a = "gflow.broadcast"(%x) {shape = array<i64: 2, 3>, dims = array<i64: 1>} : (tensor<3xf32>) -> tensor<2x3xf32>
  %1 = "gflow.broadcast"(%a) {shape = array<i64: 5, 2, 3>, dims = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<5x2x3xf32>
  %2 = "gflow.broadcast"(%x) {shape = array<i64: 3, 1>, dims = array<i64: 0>} : (tensor<3xf32>) -> tensor<3x1xf32>
  %b = "gflow.reshape"(%x) {shape = array<i64: 1, 3, 1>} : (tensor<3xf32>) -> tensor<1x3x1xf32>
  %3 = "gflow.broadcast"(%b) {shape = array<i64: 4, 3, 5>, dims = array<i64: 0, 1, 2>} : (tensor<1x3x1xf32>) -> tensor<4x3x5xf32>
  return %0, %1, %2, %3 : tensor<3xf32>, tensor<5x2x3xf32>, tensor<3x1xf32>, tensor<4x3x5xf32>
}

// CHECK-LABEL: func.func @slice(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 8>, starts = array<i64: 3>, strides = array<i64: 4>} : (tensor<10xf32>) -> tensor<2xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 0>, starts = array<i64: 0>, strides = array<i64: 1>} : (tensor<10xf32>) -> tensor<0xf32>
// CHECK-NEXT:   return %arg0, %[[v0]], %[[v1]] : tensor<10xf32>, tensor<2xf32>, tensor<0xf32>
func.func @slice(%x: tensor<10xf32>) -> (tensor<10xf32>, tensor<2xf32>, tensor<0xf32>) {
  %0 = "gflow.slice"(%x) {starts = array<i64: 0>, limits = array<i64: 10>, strides = array<i64: 1>} : (tensor<10xf32>) -> tensor<10xf32>
  %a = "gflow.slice"(%x) {starts = array<i64: 1>, limits = array<i64: 9>, strides = array<i64: 2>} : (tensor<10xf32>) -> tensor<4xf32>
  %1 = "gflow.slice"(%a) {starts = array<i64: 1>, limits = array<i64: 4>, strides = array<i64: 2>} : (tensor<4xf32>) -> tensor<2xf32>
  %e = "gflow.slice"(%x) {starts = array<i64: 2>, limits = array<i64: 5>, strides = array<i64: 1>} : (tensor<10xf32>) -> tensor<3xf32>
  %2 = "gflow.slice"(%e) {starts = array<i64: 1>, limits = array<i64: 1>, strides = array<i64: 1>} : (tensor<3xf32>) -> tensor<0xf32>
  return %0, %1, %2 : tensor<10xf32>, tensor<2xf32>, tensor<0xf32>
}

// CHECK-LABEL: func.func @slice_of(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.concatenate"(%arg0, %arg1) {dim = 0 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<3xf32>, tensor<3xf32>) -> tensor<6xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.slice"(%arg1) {limits = array<i64: 3>, starts = array<i64: 1>, strides = array<i64: 1>} : (tensor<3xf32>) -> tensor<2xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.slice"(%[[v0]]) {limits = array<i64: 6>, starts = array<i64: 2>, strides = array<i64: 1>} : (tensor<6xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.slice"(%arg3) {limits = array<i64: 1, 3>, starts = array<i64: 0, 2>, strides = array<i64: 1, 1>} : (tensor<1x3xf32>) -> tensor<1x1xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.reshape"(%[[v3]]) {shape = array<i64>} : (tensor<1x1xf32>) -> tensor<f32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.broadcast"(%[[v4]]) {dims = array<i64>, shape = array<i64: 2, 1>} : (tensor<f32>) -> tensor<2x1xf32>
// CHECK-NEXT:   return %[[v1]], %[[v2]], %arg0, %[[v5]] : tensor<2xf32>, tensor<4xf32>, tensor<3xf32>, tensor<2x1xf32>
func.func @slice_of(%x: tensor<3xf32>, %y: tensor<3xf32>, %s: tensor<f32>, %r: tensor<1x3xf32>) -> (tensor<2xf32>, tensor<4xf32>, tensor<3xf32>, tensor<2x1xf32>) {
  %a = "gflow.concatenate"(%x, %y) {dim = 0 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<3xf32>, tensor<3xf32>) -> tensor<6xf32>
  %0 = "gflow.slice"(%a) {starts = array<i64: 4>, limits = array<i64: 6>, strides = array<i64: 1>} : (tensor<6xf32>) -> tensor<2xf32>
  %1 = "gflow.slice"(%a) {starts = array<i64: 2>, limits = array<i64: 6>, strides = array<i64: 1>} : (tensor<6xf32>) -> tensor<4xf32>
  %b = "gflow.pad"(%x, %s) {low = array<i64: 1>, high = array<i64: 2>} : (tensor<3xf32>, tensor<f32>) -> tensor<6xf32>
  %2 = "gflow.slice"(%b) {starts = array<i64: 1>, limits = array<i64: 4>, strides = array<i64: 1>} : (tensor<6xf32>) -> tensor<3xf32>
  %d = "gflow.broadcast"(%r) {shape = array<i64: 4, 3>, dims = array<i64: 0, 1>} : (tensor<1x3xf32>) -> tensor<4x3xf32>
  %3 = "gflow.slice"(%d) {starts = array<i64: 1, 2>, limits = array<i64: 3, 3>, strides = array<i64: 1, 1>} : (tensor<4x3xf32>) -> tensor<2x1xf32>
  return %0, %1, %2, %3 : tensor<2xf32>, tensor<4xf32>, tensor<3xf32>, tensor<2x1xf32>
}

// CHECK-LABEL: func.func @pad(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<5xf32>} : () -> tensor<5xf32>
// CHECK-NEXT:   return %arg0, %[[v0]] : tensor<3xf32>, tensor<5xf32>
func.func @pad(%x: tensor<3xf32>, %s: tensor<f32>) -> (tensor<3xf32>, tensor<5xf32>) {
  %0 = "gflow.pad"(%x, %s) {low = array<i64: 0>, high = array<i64: 0>} : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %a = "gflow.constant"() {value = dense<0.0> : tensor<3xf32>} : () -> tensor<3xf32>
  %1 = "gflow.pad"(%a, %z) {low = array<i64: 1>, high = array<i64: 1>} : (tensor<3xf32>, tensor<f32>) -> tensor<5xf32>
  return %0, %1 : tensor<3xf32>, tensor<5xf32>
}

// CHECK-LABEL: func.func @concatenate(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.slice"(%arg0) {limits = array<i64: 5>, starts = array<i64: 1>, strides = array<i64: 1>} : (tensor<6xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %arg0, %[[v0]], %[[v1]] : tensor<6xf32>, tensor<4xf32>, tensor<4xf32>
func.func @concatenate(%x: tensor<6xf32>, %e: tensor<0xf32>) -> (tensor<6xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = "gflow.concatenate"(%x) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<6xf32>) -> tensor<6xf32>
  %a = "gflow.constant"() {value = dense<1.0> : tensor<2xf32>} : () -> tensor<2xf32>
  %1 = "gflow.concatenate"(%a, %a) {dim = 0 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
  %b = "gflow.slice"(%x) {starts = array<i64: 1>, limits = array<i64: 3>, strides = array<i64: 1>} : (tensor<6xf32>) -> tensor<2xf32>
  %d = "gflow.slice"(%x) {starts = array<i64: 3>, limits = array<i64: 5>, strides = array<i64: 1>} : (tensor<6xf32>) -> tensor<2xf32>
  %2 = "gflow.concatenate"(%b, %d) {dim = 0 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
  return %0, %1, %2 : tensor<6xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @concatenate_empty(
// CHECK-NEXT:   return %arg0 : tensor<2x0xf32>
func.func @concatenate_empty(%x: tensor<2x0xf32>, %y: tensor<2x0xf32>) -> tensor<2x0xf32> {
  %0 = "gflow.concatenate"(%x, %y) {dim = 1 : i64, operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x0xf32>, tensor<2x0xf32>) -> tensor<2x0xf32>
  return %0 : tensor<2x0xf32>
}

// CHECK-LABEL: func.func @reverse(
// CHECK-NEXT:   return %arg0, %arg0 : tensor<3x1xf32>, tensor<3x1xf32>
func.func @reverse(%x: tensor<3x1xf32>) -> (tensor<3x1xf32>, tensor<3x1xf32>) {
  %0 = "gflow.reverse"(%x) {dims = array<i64: 1>} : (tensor<3x1xf32>) -> tensor<3x1xf32>
  %a = "gflow.reverse"(%x) {dims = array<i64: 0>} : (tensor<3x1xf32>) -> tensor<3x1xf32>
  %1 = "gflow.reverse"(%a) {dims = array<i64: 0>} : (tensor<3x1xf32>) -> tensor<3x1xf32>
  return %0, %1 : tensor<3x1xf32>, tensor<3x1xf32>
}

// CHECK-LABEL: func.func @take(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3xf32>
func.func @take(%i: tensor<2xi64>) -> tensor<2x3xf32> {
  %a = "gflow.constant"() {value = dense<1.0> : tensor<5x3xf32>} : () -> tensor<5x3xf32>
  %0 = "gflow.take"(%a, %i) {dim = 0 : i64} : (tensor<5x3xf32>, tensor<2xi64>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @heads(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg0) {shape = array<i64: 5, 4, 4, 16>} : (tensor<5x4x64xf32>) -> tensor<5x4x4x16xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.transpose"(%[[v0]]) {permutation = array<i64: 1, 2, 0, 3>} : (tensor<5x4x4x16xf32>) -> tensor<4x4x5x16xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.transpose"(%arg1) {permutation = array<i64: 2, 0, 1, 3>} : (tensor<4x4x5x16xf32>) -> tensor<5x4x4x16xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.reshape"(%[[v2]]) {shape = array<i64: 5, 4, 64>} : (tensor<5x4x4x16xf32>) -> tensor<5x4x64xf32>
// CHECK-NEXT:   return %[[v1]], %[[v3]] : tensor<4x4x5x16xf32>, tensor<5x4x64xf32>
func.func @heads(%x: tensor<5x4x64xf32>, %y: tensor<4x4x5x16xf32>) -> (tensor<4x4x5x16xf32>, tensor<5x4x64xf32>) {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 5, 16, 16>} : (tensor<5x4x64xf32>) -> tensor<5x16x16xf32>
  %1 = "gflow.transpose"(%0) {permutation = array<i64: 1, 0, 2>} : (tensor<5x16x16xf32>) -> tensor<16x5x16xf32>
  %2 = "gflow.reshape"(%1) {shape = array<i64: 4, 4, 5, 16>} : (tensor<16x5x16xf32>) -> tensor<4x4x5x16xf32>
  %3 = "gflow.reshape"(%y) {shape = array<i64: 16, 5, 16>} : (tensor<4x4x5x16xf32>) -> tensor<16x5x16xf32>
  %4 = "gflow.transpose"(%3) {permutation = array<i64: 1, 0, 2>} : (tensor<16x5x16xf32>) -> tensor<5x16x16xf32>
  %5 = "gflow.reshape"(%4) {shape = array<i64: 5, 4, 64>} : (tensor<5x16x16xf32>) -> tensor<5x4x64xf32>
  return %2, %5 : tensor<4x4x5x16xf32>, tensor<5x4x64xf32>
}

// CHECK-LABEL: func.func @no_heads(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg0) {shape = array<i64: 3, 8>} : (tensor<6x4xf32>) -> tensor<3x8xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.transpose"(%[[v0]]) {permutation = array<i64: 1, 0>} : (tensor<3x8xf32>) -> tensor<8x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.reshape"(%[[v1]]) {shape = array<i64: 6, 4>} : (tensor<8x3xf32>) -> tensor<6x4xf32>
// CHECK-NEXT:   return %[[v2]] : tensor<6x4xf32>
func.func @no_heads(%x: tensor<6x4xf32>) -> tensor<6x4xf32> {
  %0 = "gflow.reshape"(%x) {shape = array<i64: 3, 8>} : (tensor<6x4xf32>) -> tensor<3x8xf32>
  %1 = "gflow.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<3x8xf32>) -> tensor<8x3xf32>
  %2 = "gflow.reshape"(%1) {shape = array<i64: 6, 4>} : (tensor<8x3xf32>) -> tensor<6x4xf32>
  return %2 : tensor<6x4xf32>
}

// CHECK-LABEL: func.func @gradients_of_slices(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<2x4xf32>} : () -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<1x4xf32>} : () -> tensor<1x4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.add"(%arg1, %[[v1]]) : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.add"(%arg2, %[[v1]]) : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.add"(%arg0, %[[v0]]) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.concatenate"(%[[v5]], %[[v3]], %[[v4]]) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<2x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.pad"(%arg0, %[[v2]]) {high = array<i64: 3, 0>, low = array<i64: 0, 0>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<5x4xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.pad"(%arg1, %[[v2]]) {high = array<i64: 1, 0>, low = array<i64: 3, 0>} : (tensor<1x4xf32>, tensor<f32>) -> tensor<5x4xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.add"(%[[v7]], %[[v8]]) : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
// CHECK-NEXT:   return %[[v6]], %[[v9]] : tensor<4x4xf32>, tensor<5x4xf32>
func.func @gradients_of_slices(%x: tensor<2x4xf32>, %y: tensor<1x4xf32>, %z: tensor<1x4xf32>) -> (tensor<4x4xf32>, tensor<5x4xf32>) {
  %c = "gflow.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %0 = "gflow.pad"(%x, %c) {low = array<i64: 0, 0>, high = array<i64: 2, 0>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %1 = "gflow.pad"(%y, %c) {low = array<i64: 2, 0>, high = array<i64: 1, 0>} : (tensor<1x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %2 = "gflow.pad"(%z, %c) {low = array<i64: 3, 0>, high = array<i64: 0, 0>} : (tensor<1x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %3 = "gflow.add"(%2, %1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = "gflow.add"(%3, %0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = "gflow.pad"(%x, %c) {low = array<i64: 0, 0>, high = array<i64: 3, 0>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<5x4xf32>
  %6 = "gflow.pad"(%y, %c) {low = array<i64: 3, 0>, high = array<i64: 1, 0>} : (tensor<1x4xf32>, tensor<f32>) -> tensor<5x4xf32>
  %7 = "gflow.add"(%5, %6) : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<5x4xf32>
  return %4, %7 : tensor<4x4xf32>, tensor<5x4xf32>
}

// CHECK-LABEL: func.func @transposed_concatenation(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.concatenate"(%arg0, %arg1) {dim = 1 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<4x2xf32>, tensor<4x3xf32>) -> tensor<4x5xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<4x5xf32>
func.func @transposed_concatenation(%x: tensor<4x2xf32>, %y: tensor<4x3xf32>) -> tensor<4x5xf32> {
  %a = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %b = "gflow.transpose"(%y) {permutation = array<i64: 1, 0>} : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %0 = "gflow.concatenate"(%a, %b) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x4xf32>, tensor<3x4xf32>) -> tensor<5x4xf32>
  %1 = "gflow.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<5x4xf32>) -> tensor<4x5xf32>
  return %1 : tensor<4x5xf32>
}
