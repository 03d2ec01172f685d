// RUN: %gflow-opt %s --gflow-recognize-windows --gflow-simplify --cse | FileCheck %s

// Positions at most 63 before: causal, and a window.
// CHECK-LABEL: func.func @sliding(
// CHECK-NOT:     "gflow.compare"
// CHECK:         "gflow.attention"(%arg0, %arg0, %arg0) {causal = true{{.*}}window = array<i64: 63, 0>}
func.func @sliding(%q: tensor<2x256x2x64xf32>) -> tensor<2x256x2x64xf32> {
  %i = "gflow.iota"() {dim = 0 : i64, dtype = "i64", shape = array<i64: 256, 256>} : () -> tensor<256x256xi64>
  %j = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 256, 256>} : () -> tensor<256x256xi64>
  %0 = "gflow.compare"(%j, %i) {predicate = "le"} : (tensor<256x256xi64>, tensor<256x256xi64>) -> tensor<256x256xi1>
  %1 = "gflow.sub"(%i, %j) : (tensor<256x256xi64>, tensor<256x256xi64>) -> tensor<256x256xi64>
  %w = "gflow.constant"() {value = dense<64> : tensor<256x256xi64>} : () -> tensor<256x256xi64>
  %2 = "gflow.compare"(%1, %w) {predicate = "lt"} : (tensor<256x256xi64>, tensor<256x256xi64>) -> tensor<256x256xi1>
  %3 = "gflow.and"(%0, %2) : (tensor<256x256xi1>, tensor<256x256xi1>) -> tensor<256x256xi1>
  %4 = "gflow.reshape"(%3) {shape = array<i64: 1, 1, 256, 256>} : (tensor<256x256xi1>) -> tensor<1x1x256x256xi1>
  %y, %l = "gflow.attention"(%q, %q, %q, %4) {causal = false, operandSegmentSizes = array<i32: 3, 1, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<2x256x2x64xf32>, tensor<2x256x2x64xf32>, tensor<2x256x2x64xf32>, tensor<1x1x256x256xi1>) -> (tensor<2x256x2x64xf32>, tensor<2x2x256xf32>)
  return %y : tensor<2x256x2x64xf32>
}

// Documents and keys that are there, added as -inf: documents are operands, what is left of the mask is one of keys.
// CHECK-LABEL: func.func @documents(
// CHECK:         %[[P:.+]] = "gflow.reshape"(%arg2) {shape = array<i64: 2, 1, 1, 256>}
// CHECK:         "gflow.attention"(%arg0, %arg0, %arg0, %[[P]], %arg1, %arg1) {causal = true, {{.*}}}
// CHECK-NOT:     window
func.func @documents(%q: tensor<2x256x2x64xf32>, %d: tensor<2x256xi64>, %p: tensor<2x256xi1>) -> tensor<2x256x2x64xf32> {
  %i = "gflow.iota"() {dim = 0 : i64, dtype = "i64", shape = array<i64: 256>} : () -> tensor<256xi64>
  %0 = "gflow.broadcast"(%i) {dims = array<i64: 2>, shape = array<i64: 2, 1, 256, 256>} : (tensor<256xi64>) -> tensor<2x1x256x256xi64>
  %1 = "gflow.broadcast"(%i) {dims = array<i64: 3>, shape = array<i64: 2, 1, 256, 256>} : (tensor<256xi64>) -> tensor<2x1x256x256xi64>
  %2 = "gflow.compare"(%0, %1) {predicate = "ge"} : (tensor<2x1x256x256xi64>, tensor<2x1x256x256xi64>) -> tensor<2x1x256x256xi1>
  %3 = "gflow.broadcast"(%d) {dims = array<i64: 0, 2>, shape = array<i64: 2, 1, 256, 256>} : (tensor<2x256xi64>) -> tensor<2x1x256x256xi64>
  %4 = "gflow.broadcast"(%d) {dims = array<i64: 0, 3>, shape = array<i64: 2, 1, 256, 256>} : (tensor<2x256xi64>) -> tensor<2x1x256x256xi64>
  %5 = "gflow.compare"(%3, %4) {predicate = "ne"} : (tensor<2x1x256x256xi64>, tensor<2x1x256x256xi64>) -> tensor<2x1x256x256xi1>
  %6 = "gflow.broadcast"(%p) {dims = array<i64: 0, 3>, shape = array<i64: 2, 1, 256, 256>} : (tensor<2x256xi1>) -> tensor<2x1x256x256xi1>
  %7 = "gflow.and"(%2, %6) : (tensor<2x1x256x256xi1>, tensor<2x1x256x256xi1>) -> tensor<2x1x256x256xi1>
  %8 = "gflow.not"(%7) : (tensor<2x1x256x256xi1>) -> tensor<2x1x256x256xi1>
  %9 = "gflow.or"(%5, %8) : (tensor<2x1x256x256xi1>, tensor<2x1x256x256xi1>) -> tensor<2x1x256x256xi1>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<2x1x256x256xf32>} : () -> tensor<2x1x256x256xf32>
  %n = "gflow.constant"() {value = dense<0xFF800000> : tensor<2x1x256x256xf32>} : () -> tensor<2x1x256x256xf32>
  %m = "gflow.select"(%9, %n, %z) : (tensor<2x1x256x256xi1>, tensor<2x1x256x256xf32>, tensor<2x1x256x256xf32>) -> tensor<2x1x256x256xf32>
  %y, %l = "gflow.attention"(%q, %q, %q, %m) {causal = false, operandSegmentSizes = array<i32: 3, 1, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<2x256x2x64xf32>, tensor<2x256x2x64xf32>, tensor<2x256x2x64xf32>, tensor<2x1x256x256xf32>) -> (tensor<2x256x2x64xf32>, tensor<2x2x256xf32>)
  return %y : tensor<2x256x2x64xf32>
}

// A mask of the lowest number, under which position 255 sees no key of 128: its row has equal weights.
// CHECK-LABEL: func.func @low(
// CHECK:         "gflow.attention"(%arg0, %arg1, %arg1, %{{.+}}) {causal = false
func.func @low(%q: tensor<1x256x2x64xf32>, %k: tensor<1x128x2x64xf32>) -> tensor<1x256x2x64xf32> {
  %i = "gflow.iota"() {dim = 2 : i64, dtype = "i64", shape = array<i64: 1, 1, 256, 128>} : () -> tensor<1x1x256x128xi64>
  %j = "gflow.iota"() {dim = 3 : i64, dtype = "i64", shape = array<i64: 1, 1, 256, 128>} : () -> tensor<1x1x256x128xi64>
  %0 = "gflow.sub"(%i, %j) : (tensor<1x1x256x128xi64>, tensor<1x1x256x128xi64>) -> tensor<1x1x256x128xi64>
  %1 = "gflow.abs"(%0) : (tensor<1x1x256x128xi64>) -> tensor<1x1x256x128xi64>
  %w = "gflow.constant"() {value = dense<16> : tensor<1x1x256x128xi64>} : () -> tensor<1x1x256x128xi64>
  %2 = "gflow.compare"(%1, %w) {predicate = "le"} : (tensor<1x1x256x128xi64>, tensor<1x1x256x128xi64>) -> tensor<1x1x256x128xi1>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<1x1x256x128xf32>} : () -> tensor<1x1x256x128xf32>
  %n = "gflow.constant"() {value = dense<-3.40282347E+38> : tensor<1x1x256x128xf32>} : () -> tensor<1x1x256x128xf32>
  %m = "gflow.select"(%2, %z, %n) : (tensor<1x1x256x128xi1>, tensor<1x1x256x128xf32>, tensor<1x1x256x128xf32>) -> tensor<1x1x256x128xf32>
  %y, %l = "gflow.attention"(%q, %k, %k, %m) {causal = false, operandSegmentSizes = array<i32: 1, 2, 1, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<1x256x2x64xf32>, tensor<1x128x2x64xf32>, tensor<1x128x2x64xf32>, tensor<1x1x256x128xf32>) -> (tensor<1x256x2x64xf32>, tensor<1x2x256xf32>)
  return %y : tensor<1x256x2x64xf32>
}
