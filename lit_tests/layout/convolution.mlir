// RUN: %gflow-opt %s --gflow-assign-layout --cse | FileCheck %s

// Convolutions become channels last; the activation between them needs no transpose.
// CHECK-LABEL: func.func @chain(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x3x8x8xf32>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.transpose"(%arg1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<4x3x3x3xf32>) -> tensor<4x3x3x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x8x8x3xf32>, tensor<4x3x3x3xf32>) -> tensor<2x6x6x4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.tanh"(%[[v2]]) : (tensor<2x6x6x4xf32>) -> tensor<2x6x6x4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.reshape"(%arg2) {shape = array<i64: 5, 1, 1, 4>} : (tensor<5x4x1x1xf32>) -> tensor<5x1x1x4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.convolution"(%[[v3]], %[[v4]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x6x6x4xf32>, tensor<5x1x1x4xf32>) -> tensor<2x6x6x5xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.transpose"(%[[v5]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x6x6x5xf32>) -> tensor<2x5x6x6xf32>
// CHECK-NEXT:   return %[[v6]] : tensor<2x5x6x6xf32>
func.func @chain(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x3x3xf32>, %v: tensor<5x4x1x1xf32>) -> tensor<2x5x6x6xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x6x6xf32>
  %1 = "gflow.tanh"(%0) : (tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
  %2 = "gflow.convolution"(%1, %v) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x4x6x6xf32>, tensor<5x4x1x1xf32>) -> tensor<2x5x6x6xf32>
  return %2 : tensor<2x5x6x6xf32>
}

// Dimensions of broadcasts, reductions, slices and pads follow.
// CHECK-LABEL: func.func @dimensions(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x3x4x4xf32>) -> tensor<2x4x4x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 3, 1, 1, 3>} : (tensor<3x3x1x1xf32>) -> tensor<3x1x1x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x4x4x3xf32>, tensor<3x1x1x3xf32>) -> tensor<2x4x4x3xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.broadcast"(%arg2) {dims = array<i64: 3>, shape = array<i64: 2, 4, 4, 3>} : (tensor<3xf32>) -> tensor<2x4x4x3xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.add"(%[[v2]], %[[v3]]) : (tensor<2x4x4x3xf32>, tensor<2x4x4x3xf32>) -> tensor<2x4x4x3xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.reduce"(%[[v4]]) {dims = array<i64: 0, 1, 2>, kind = "sum"} : (tensor<2x4x4x3xf32>) -> tensor<3xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.reduce"(%[[v4]]) {dims = array<i64: 1, 2>, kind = "max"} : (tensor<2x4x4x3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.reduce"(%[[v4]]) {dims = array<i64: 0, 1>, kind = "sum"} : (tensor<2x4x4x3xf32>) -> tensor<4x3xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.transpose"(%[[v7]]) {permutation = array<i64: 1, 0>} : (tensor<4x3xf32>) -> tensor<3x4xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.slice"(%[[v4]]) {limits = array<i64: 2, 4, 4, 3>, starts = array<i64: 0, 0, 0, 1>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x4x4x3xf32>) -> tensor<2x4x4x2xf32>
// CHECK-NEXT:   %[[v10:.+]] = "gflow.pad"(%[[v9]], %arg3) {high = array<i64: 0, 0, 1, 0>, low = array<i64: 0, 2, 0, 0>} : (tensor<2x4x4x2xf32>, tensor<f32>) -> tensor<2x6x5x2xf32>
// CHECK-NEXT:   %[[v11:.+]] = "gflow.transpose"(%[[v10]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x6x5x2xf32>) -> tensor<2x2x6x5xf32>
// CHECK-NEXT:   return %[[v5]], %[[v6]], %[[v8]], %[[v11]] : tensor<3xf32>, tensor<2x3xf32>, tensor<3x4xf32>, tensor<2x2x6x5xf32>
func.func @dimensions(%x: tensor<2x3x4x4xf32>, %w: tensor<3x3x1x1xf32>, %b: tensor<3xf32>, %z: tensor<f32>) -> (tensor<3xf32>, tensor<2x3xf32>, tensor<3x4xf32>, tensor<2x2x6x5xf32>) {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x4x4xf32>, tensor<3x3x1x1xf32>) -> tensor<2x3x4x4xf32>
  %1 = "gflow.broadcast"(%b) {dims = array<i64: 1>, shape = array<i64: 2, 3, 4, 4>} : (tensor<3xf32>) -> tensor<2x3x4x4xf32>
  %2 = "gflow.add"(%0, %1) : (tensor<2x3x4x4xf32>, tensor<2x3x4x4xf32>) -> tensor<2x3x4x4xf32>
  %3 = "gflow.reduce"(%2) {dims = array<i64: 0, 2, 3>, kind = "sum"} : (tensor<2x3x4x4xf32>) -> tensor<3xf32>
  %4 = "gflow.reduce"(%2) {dims = array<i64: 2, 3>, kind = "max"} : (tensor<2x3x4x4xf32>) -> tensor<2x3xf32>
  %5 = "gflow.reduce"(%2) {dims = array<i64: 0, 2>, kind = "sum"} : (tensor<2x3x4x4xf32>) -> tensor<3x4xf32>
  %6 = "gflow.slice"(%2) {starts = array<i64: 0, 1, 0, 0>, limits = array<i64: 2, 3, 4, 4>, strides = array<i64: 1, 1, 1, 1>} : (tensor<2x3x4x4xf32>) -> tensor<2x2x4x4xf32>
  %7 = "gflow.pad"(%6, %z) {low = array<i64: 0, 0, 2, 0>, high = array<i64: 0, 0, 0, 1>} : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x6x5xf32>
  return %3, %4, %5, %7 : tensor<3xf32>, tensor<2x3xf32>, tensor<3x4xf32>, tensor<2x2x6x5xf32>
}

// Gradients too; that of the weight goes back to the layout of the parameter.
// CHECK-LABEL: func.func @gradients(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg2) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x4x6x6xf32>) -> tensor<2x6x6x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.transpose"(%arg1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<4x3x3x3xf32>) -> tensor<4x3x3x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution_input_grad"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, shape = array<i64: 2, 8, 8, 3>, stride = array<i64: 1, 1>} : (tensor<2x6x6x4xf32>, tensor<4x3x3x3xf32>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.transpose"(%[[v2]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x8x8x3xf32>) -> tensor<2x3x8x8xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x3x8x8xf32>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.convolution_weight_grad"(%[[v4]], %[[v0]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, shape = array<i64: 4, 3, 3, 3>, stride = array<i64: 1, 1>} : (tensor<2x8x8x3xf32>, tensor<2x6x6x4xf32>) -> tensor<4x3x3x3xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.transpose"(%[[v5]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<4x3x3x3xf32>) -> tensor<4x3x3x3xf32>
// CHECK-NEXT:   return %[[v3]], %[[v6]] : tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>
func.func @gradients(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x3x3xf32>, %dy: tensor<2x4x6x6xf32>) -> (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) {
  %0 = "gflow.convolution_input_grad"(%dy, %w) {shape = array<i64: 2, 3, 8, 8>, stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x4x6x6xf32>, tensor<4x3x3x3xf32>) -> tensor<2x3x8x8xf32>
  %1 = "gflow.convolution_weight_grad"(%x, %dy) {shape = array<i64: 4, 3, 3, 3>, stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x8x8xf32>, tensor<2x4x6x6xf32>) -> tensor<4x3x3x3xf32>
  return %0, %1 : tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>
}

// A gradient that starts as a broadcast is made channels last in the first place.
// CHECK-LABEL: func.func @from_broadcast(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.mul"(%arg0, %arg0) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%[[v0]]) {dims = array<i64: 0, 3>, shape = array<i64: 2, 6, 6, 4>} : (tensor<2x4xf32>) -> tensor<2x6x6x4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.transpose"(%arg1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<4x3x3x3xf32>) -> tensor<4x3x3x3xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convolution_input_grad"(%[[v1]], %[[v2]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, shape = array<i64: 2, 8, 8, 3>, stride = array<i64: 1, 1>} : (tensor<2x6x6x4xf32>, tensor<4x3x3x3xf32>) -> tensor<2x8x8x3xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.transpose"(%[[v3]]) {permutation = array<i64: 0, 3, 1, 2>} : (tensor<2x8x8x3xf32>) -> tensor<2x3x8x8xf32>
// CHECK-NEXT:   return %[[v4]] : tensor<2x3x8x8xf32>
func.func @from_broadcast(%g: tensor<2x4xf32>, %w: tensor<4x3x3x3xf32>) -> tensor<2x3x8x8xf32> {
  %0 = "gflow.broadcast"(%g) {dims = array<i64: 0, 1>, shape = array<i64: 2, 4, 6, 6>} : (tensor<2x4xf32>) -> tensor<2x4x6x6xf32>
  %1 = "gflow.mul"(%0, %0) : (tensor<2x4x6x6xf32>, tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
  %2 = "gflow.convolution_input_grad"(%1, %w) {shape = array<i64: 2, 3, 8, 8>, stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x4x6x6xf32>, tensor<4x3x3x3xf32>) -> tensor<2x3x8x8xf32>
  return %2 : tensor<2x3x8x8xf32>
}

// So does one of a single dimension, and stays as it is in float64, for which there is no own kernel.
// CHECK-LABEL: func.func @one_dimension(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 1>} : (tensor<2x3x8xf32>) -> tensor<2x8x3xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.transpose"(%arg1) {permutation = array<i64: 0, 2, 1>} : (tensor<4x3x3xf32>) -> tensor<4x3x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0>, stride = array<i64: 1>} : (tensor<2x8x3xf32>, tensor<4x3x3xf32>) -> tensor<2x6x4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.transpose"(%[[v2]]) {permutation = array<i64: 0, 2, 1>} : (tensor<2x6x4xf32>) -> tensor<2x4x6xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convolution"(%arg2, %arg3) {dilation = array<i64: 1>, groups = 1 : i64, layout = "NC*", padding = array<i64: 0>, stride = array<i64: 1>} : (tensor<2x3x8xf64>, tensor<4x3x3xf64>) -> tensor<2x4x6xf64>
// CHECK-NEXT:   return %[[v3]], %[[v4]] : tensor<2x4x6xf32>, tensor<2x4x6xf64>
func.func @one_dimension(%x: tensor<2x3x8xf32>, %w: tensor<4x3x3xf32>, %y: tensor<2x3x8xf64>, %v: tensor<4x3x3xf64>) -> (tensor<2x4x6xf32>, tensor<2x4x6xf64>) {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1>, padding = array<i64: 0>, dilation = array<i64: 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x8xf32>, tensor<4x3x3xf32>) -> tensor<2x4x6xf32>
  %1 = "gflow.convolution"(%y, %v) {stride = array<i64: 1>, padding = array<i64: 0>, dilation = array<i64: 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x3x8xf64>, tensor<4x3x3xf64>) -> tensor<2x4x6xf64>
  return %0, %1 : tensor<2x4x6xf32>, tensor<2x4x6xf64>
}

// The transpose of a broadcast from one element is that broadcast again: it is followed once.
// CHECK-LABEL: func.func @broadcast_of_one_element(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.transpose"(%arg0) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<2x2x3x3xf32>) -> tensor<2x3x3x2xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.transpose"(%arg1) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x2x3x3xf32>) -> tensor<1x3x3x2xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convolution"(%[[v0]], %[[v1]]) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 0, 0>, stride = array<i64: 1, 1>} : (tensor<2x3x3x2xf32>, tensor<1x3x3x2xf32>) -> tensor<2x1x1x1xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.broadcast"(%[[v2]]) {dims = array<i64: 0, 1, 2, 3>, shape = array<i64: 2, 2, 3, 3>} : (tensor<2x1x1x1xf32>) -> tensor<2x2x3x3xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.broadcast"(%arg1) {dims = array<i64: 0, 1, 2, 3>, shape = array<i64: 2, 2, 3, 3>} : (tensor<1x2x3x3xf32>) -> tensor<2x2x3x3xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.mul"(%[[v3]], %[[v4]]) : (tensor<2x2x3x3xf32>, tensor<2x2x3x3xf32>) -> tensor<2x2x3x3xf32>
// CHECK-NEXT:   return %[[v5]] : tensor<2x2x3x3xf32>
func.func @broadcast_of_one_element(%x: tensor<2x2x3x3xf32>, %w: tensor<1x2x3x3xf32>) -> tensor<2x2x3x3xf32> {
  %0 = "gflow.convolution"(%x, %w) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "NC*"} : (tensor<2x2x3x3xf32>, tensor<1x2x3x3xf32>) -> tensor<2x1x1x1xf32>
  %1 = "gflow.broadcast"(%0) {dims = array<i64: 0, 1, 2, 3>, shape = array<i64: 2, 2, 3, 3>} : (tensor<2x1x1x1xf32>) -> tensor<2x2x3x3xf32>
  %2 = "gflow.broadcast"(%w) {dims = array<i64: 0, 1, 2, 3>, shape = array<i64: 2, 2, 3, 3>} : (tensor<1x2x3x3xf32>) -> tensor<2x2x3x3xf32>
  %3 = "gflow.mul"(%1, %2) : (tensor<2x2x3x3xf32>, tensor<2x2x3x3xf32>) -> tensor<2x2x3x3xf32>
  return %3 : tensor<2x2x3x3xf32>
}
