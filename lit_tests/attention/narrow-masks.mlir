// RUN: %gflow-opt %s --gflow-narrow-masks --gflow-simplify --cse | FileCheck %s

// A padding mask that was expanded before numbers were chosen by it: a row of float32 for each image.
// CHECK-LABEL: func.func @padding(
// CHECK-NOT:     256x256
// CHECK:         %[[S:.+]] = "gflow.select"(%arg1, {{.*}}) : (tensor<2x256xi1>, tensor<2x256xbf16>, tensor<2x256xbf16>) -> tensor<2x256xbf16>
// CHECK:         %[[F:.+]] = "gflow.convert"(%[[S]]) {dtype = "f32"}
// CHECK:         %[[B:.+]] = "gflow.reshape"(%[[F]]) {shape = array<i64: 2, 1, 1, 256>}
// CHECK:         "gflow.attention"(%arg0, %arg0, %arg0, %[[B]])
func.func @padding(%q: tensor<2x256x2x64xbf16>, %p: tensor<2x256xi1>) -> tensor<2x256x2x64xbf16> {
  %0 = "gflow.broadcast"(%p) {dims = array<i64: 0, 3>, shape = array<i64: 2, 1, 256, 256>} : (tensor<2x256xi1>) -> tensor<2x1x256x256xi1>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<2x1x256x256xbf16>} : () -> tensor<2x1x256x256xbf16>
  %n = "gflow.constant"() {value = dense<0xFF80> : tensor<2x1x256x256xbf16>} : () -> tensor<2x1x256x256xbf16>
  %1 = "gflow.select"(%0, %z, %n) : (tensor<2x1x256x256xi1>, tensor<2x1x256x256xbf16>, tensor<2x1x256x256xbf16>) -> tensor<2x1x256x256xbf16>
  %y, %l = "gflow.attention"(%q, %q, %q, %1) {causal = false, operandSegmentSizes = array<i32: 3, 1, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<2x256x2x64xbf16>, tensor<2x256x2x64xbf16>, tensor<2x256x2x64xbf16>, tensor<2x1x256x256xbf16>) -> (tensor<2x256x2x64xbf16>, tensor<2x2x256xf32>)
  return %y : tensor<2x256x2x64xbf16>
}

// A table of one number for each pair of positions, and a number for each head, repeated for all batches: no batches are left.
// CHECK-LABEL: func.func @tables(
// CHECK:         %[[S:.+]] = "gflow.add"({{.*}}) : (tensor<1x2x64x64xf32>, tensor<1x2x64x64xf32>) -> tensor<1x2x64x64xf32>
// CHECK:         "gflow.attention"(%arg0, %arg0, %arg0, %[[S]])
func.func @tables(%q: tensor<3x64x2x64xf32>, %t: tensor<64x64xf32>, %h: tensor<2x1xf32>) -> tensor<3x64x2x64xf32> {
  %a = "gflow.transpose"(%t) {permutation = array<i64: 1, 0>} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = "gflow.broadcast"(%a) {dims = array<i64: 2, 3>, shape = array<i64: 3, 2, 64, 64>} : (tensor<64x64xf32>) -> tensor<3x2x64x64xf32>
  %r = "gflow.reshape"(%h) {shape = array<i64: 1, 2, 1, 1>} : (tensor<2x1xf32>) -> tensor<1x2x1x1xf32>
  %1 = "gflow.broadcast"(%r) {dims = array<i64: 0, 1, 2, 3>, shape = array<i64: 3, 2, 64, 64>} : (tensor<1x2x1x1xf32>) -> tensor<3x2x64x64xf32>
  %2 = "gflow.add"(%0, %1) : (tensor<3x2x64x64xf32>, tensor<3x2x64x64xf32>) -> tensor<3x2x64x64xf32>
  %y, %l = "gflow.attention"(%q, %q, %q, %2) {causal = false, operandSegmentSizes = array<i32: 3, 1, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<3x64x2x64xf32>, tensor<3x64x2x64xf32>, tensor<3x64x2x64xf32>, tensor<3x2x64x64xf32>) -> (tensor<3x64x2x64xf32>, tensor<3x2x64xf32>)
  return %y : tensor<3x64x2x64xf32>
}

// A mask that is given for all positions, and a bias whose gradient is wanted, stay.
// CHECK-LABEL: func.func @whole(
// CHECK:         "gflow.attention"(%arg0, %arg0, %arg0, %arg2)
// CHECK:         %[[B:.+]] = "gflow.broadcast"(%arg3)
// CHECK:         "gflow.attention_grad"({{.*}}, %[[B]]){{.*}}tensor<2x2x64x64xf32>)
func.func @whole(%q: tensor<2x64x2x64xf32>, %s: tensor<2x2x64xf32>, %m: tensor<2x1x64x64xi1>, %h: tensor<2xf32>)
    -> (tensor<2x64x2x64xf32>, tensor<2x2x64x64xf32>) {
  %y, %l = "gflow.attention"(%q, %q, %q, %m) {causal = false, operandSegmentSizes = array<i32: 3, 1, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x1x64x64xi1>) -> (tensor<2x64x2x64xf32>, tensor<2x2x64xf32>)
  %b = "gflow.broadcast"(%h) {dims = array<i64: 1>, shape = array<i64: 2, 2, 64, 64>} : (tensor<2xf32>) -> tensor<2x2x64x64xf32>
  %g:4 = "gflow.attention_grad"(%q, %q, %q, %q, %y, %s, %b) {bias_grad = true, causal = false, operandSegmentSizes = array<i32: 5, 1, 1, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 3, 1, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x2x64xf32>, tensor<2x2x64x64xf32>) -> (tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x64x2x64xf32>, tensor<2x2x64x64xf32>)
  return %y, %g#3 : tensor<2x64x2x64xf32>, tensor<2x2x64x64xf32>
}
