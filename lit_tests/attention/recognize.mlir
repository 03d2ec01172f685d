// RUN: %gflow-opt %s --gflow-recognize-attention --gflow-simplify --cse | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-recognize-attention{min-scores=100000},gflow-simplify))' | FileCheck %s --check-prefix=SMALL

// CHECK-LABEL: func.func @plain(
// CHECK:         "gflow.attention"(%{{.+}}, %{{.+}}, %{{.+}}){{.*}}causal = false{{.*}}scale = 1.250000e-01
// CHECK-NOT:     "gflow.exp"
// SMALL-LABEL: func.func @plain(
// SMALL-NOT:     "gflow.attention"
func.func @plain(%q: tensor<16x128x64xf32>, %kt: tensor<16x64x128xf32>, %v: tensor<16x128x64xf32>) -> tensor<16x128x64xf32> {
  %c = "gflow.constant"() {value = dense<1.250000e-01> : tensor<16x128x128xf32>} : () -> tensor<16x128x128xf32>
  %0 = "gflow.matmul"(%q, %kt) : (tensor<16x128x64xf32>, tensor<16x64x128xf32>) -> tensor<16x128x128xf32>
  %1 = "gflow.mul"(%0, %c) : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
  %2 = "gflow.reduce"(%1) {dims = array<i64: 2>, kind = "max"} : (tensor<16x128x128xf32>) -> tensor<16x128xf32>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0, 1>, shape = array<i64: 16, 128, 128>} : (tensor<16x128xf32>) -> tensor<16x128x128xf32>
  %4 = "gflow.sub"(%1, %3) : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
  %5 = "gflow.exp"(%4) : (tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
  %6 = "gflow.reduce"(%5) {dims = array<i64: 2>, kind = "sum"} : (tensor<16x128x128xf32>) -> tensor<16x128xf32>
  %7 = "gflow.broadcast"(%6) {dims = array<i64: 0, 1>, shape = array<i64: 16, 128, 128>} : (tensor<16x128xf32>) -> tensor<16x128x128xf32>
  %8 = "gflow.div"(%5, %7) : (tensor<16x128x128xf32>, tensor<16x128x128xf32>) -> tensor<16x128x128xf32>
  %9 = "gflow.matmul"(%8, %v) : (tensor<16x128x128xf32>, tensor<16x128x64xf32>) -> tensor<16x128x64xf32>
  return %9 : tensor<16x128x64xf32>
}

// Weights that are returned stay, and so do the scores.
// CHECK-LABEL: func.func @returned(
// CHECK-NOT:     "gflow.attention"
func.func @returned(%q: tensor<1x64x64xf32>, %kt: tensor<1x64x64xf32>, %v: tensor<1x64x64xf32>) -> (tensor<1x64x64xf32>, tensor<1x64x64xf32>) {
  %0 = "gflow.matmul"(%q, %kt) : (tensor<1x64x64xf32>, tensor<1x64x64xf32>) -> tensor<1x64x64xf32>
  %2 = "gflow.reduce"(%0) {dims = array<i64: 2>, kind = "max"} : (tensor<1x64x64xf32>) -> tensor<1x64xf32>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0, 1>, shape = array<i64: 1, 64, 64>} : (tensor<1x64xf32>) -> tensor<1x64x64xf32>
  %4 = "gflow.sub"(%0, %3) : (tensor<1x64x64xf32>, tensor<1x64x64xf32>) -> tensor<1x64x64xf32>
  %5 = "gflow.exp"(%4) : (tensor<1x64x64xf32>) -> tensor<1x64x64xf32>
  %6 = "gflow.reduce"(%5) {dims = array<i64: 2>, kind = "sum"} : (tensor<1x64x64xf32>) -> tensor<1x64xf32>
  %7 = "gflow.broadcast"(%6) {dims = array<i64: 0, 1>, shape = array<i64: 1, 64, 64>} : (tensor<1x64xf32>) -> tensor<1x64x64xf32>
  %8 = "gflow.div"(%5, %7) : (tensor<1x64x64xf32>, tensor<1x64x64xf32>) -> tensor<1x64x64xf32>
  %9 = "gflow.matmul"(%8, %v) : (tensor<1x64x64xf32>, tensor<1x64x64xf32>) -> tensor<1x64x64xf32>
  return %8, %9 : tensor<1x64x64xf32>, tensor<1x64x64xf32>
}
