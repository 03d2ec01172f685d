// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-recognize-attention{own=true}))' | FileCheck %s

// What a mask hides is hidden as i1, whatever the scores are. The op gives NaN for a row that sees nothing, as the
// program does, and no other kernel may make it.
// CHECK-LABEL: func.func @hidden(
// CHECK:         %[[H:.+]] = "gflow.reshape"(%{{.+}}) {shape = array<i64: 2, 1, 1, 128>}
// CHECK:         %[[K:.+]] = "gflow.not"(%[[H]])
// CHECK:         "gflow.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[K]]) {causal = false, formula = true,{{.*}}tensor<2x1x1x128xi1>
// CHECK-NOT:     kind = "any"
func.func @hidden(%q: tensor<2x128x64xf32>, %kt: tensor<2x64x128xf32>, %v: tensor<2x128x64xf32>, %h: tensor<2x1x128xi1>) -> tensor<2x128x64xf32> {
  %c = "gflow.constant"() {value = dense<0xFF800000> : tensor<2x128x128xf32>} : () -> tensor<2x128x128xf32>
  %m = "gflow.reshape"(%h) {shape = array<i64: 2, 128>} : (tensor<2x1x128xi1>) -> tensor<2x128xi1>
  %w = "gflow.broadcast"(%m) {dims = array<i64: 0, 2>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xi1>) -> tensor<2x128x128xi1>
  %0 = "gflow.matmul"(%q, %kt) : (tensor<2x128x64xf32>, tensor<2x64x128xf32>) -> tensor<2x128x128xf32>
  %1 = "gflow.select"(%w, %c, %0) : (tensor<2x128x128xi1>, tensor<2x128x128xf32>, tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %2 = "gflow.reduce"(%1) {dims = array<i64: 2>, kind = "max"} : (tensor<2x128x128xf32>) -> tensor<2x128xf32>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0, 1>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xf32>) -> tensor<2x128x128xf32>
  %4 = "gflow.sub"(%1, %3) : (tensor<2x128x128xf32>, tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %5 = "gflow.exp"(%4) : (tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %6 = "gflow.reduce"(%5) {dims = array<i64: 2>, kind = "sum"} : (tensor<2x128x128xf32>) -> tensor<2x128xf32>
  %7 = "gflow.broadcast"(%6) {dims = array<i64: 0, 1>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xf32>) -> tensor<2x128x128xf32>
  %8 = "gflow.div"(%5, %7) : (tensor<2x128x128xf32>, tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %9 = "gflow.matmul"(%8, %v) : (tensor<2x128x128xf32>, tensor<2x128x64xf32>) -> tensor<2x128x64xf32>
  return %9 : tensor<2x128x64xf32>
}

// Scores that are set to a large number give such a row equal weights.
// CHECK-LABEL: func.func @low(
// CHECK:         %[[H:.+]] = "gflow.reshape"(%{{.+}}) {shape = array<i64: 2, 1, 1, 128>}
// CHECK:         %[[K:.+]] = "gflow.not"(%[[H]])
// CHECK:         %[[A:.+]]:2 = "gflow.attention"(%{{.+}}, %{{.+}}, %{{.+}}, %[[K]]) {causal = false, formula = true,{{.*}}tensor<2x1x1x128xi1>
// CHECK:         "gflow.reduce"(%[[K]]) {dims = array<i64: 3>, kind = "any"}
// CHECK:         "gflow.select"
func.func @low(%q: tensor<2x128x64xf32>, %kt: tensor<2x64x128xf32>, %v: tensor<2x128x64xf32>, %h: tensor<2x1x128xi1>) -> tensor<2x128x64xf32> {
  %c = "gflow.constant"() {value = dense<-1.000000e+09> : tensor<2x128x128xf32>} : () -> tensor<2x128x128xf32>
  %m = "gflow.reshape"(%h) {shape = array<i64: 2, 128>} : (tensor<2x1x128xi1>) -> tensor<2x128xi1>
  %w = "gflow.broadcast"(%m) {dims = array<i64: 0, 2>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xi1>) -> tensor<2x128x128xi1>
  %0 = "gflow.matmul"(%q, %kt) : (tensor<2x128x64xf32>, tensor<2x64x128xf32>) -> tensor<2x128x128xf32>
  %1 = "gflow.select"(%w, %c, %0) : (tensor<2x128x128xi1>, tensor<2x128x128xf32>, tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %2 = "gflow.reduce"(%1) {dims = array<i64: 2>, kind = "max"} : (tensor<2x128x128xf32>) -> tensor<2x128xf32>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0, 1>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xf32>) -> tensor<2x128x128xf32>
  %4 = "gflow.sub"(%1, %3) : (tensor<2x128x128xf32>, tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %5 = "gflow.exp"(%4) : (tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %6 = "gflow.reduce"(%5) {dims = array<i64: 2>, kind = "sum"} : (tensor<2x128x128xf32>) -> tensor<2x128xf32>
  %7 = "gflow.broadcast"(%6) {dims = array<i64: 0, 1>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xf32>) -> tensor<2x128x128xf32>
  %8 = "gflow.div"(%5, %7) : (tensor<2x128x128xf32>, tensor<2x128x128xf32>) -> tensor<2x128x128xf32>
  %9 = "gflow.matmul"(%8, %v) : (tensor<2x128x128xf32>, tensor<2x128x64xf32>) -> tensor<2x128x64xf32>
  return %9 : tensor<2x128x64xf32>
}

// Our own kernel is of float32.
// CHECK-LABEL: func.func @wide(
// CHECK-NOT:     "gflow.attention"
func.func @wide(%q: tensor<2x128x64xf64>, %kt: tensor<2x64x128xf64>, %v: tensor<2x128x64xf64>) -> tensor<2x128x64xf64> {
  %1 = "gflow.matmul"(%q, %kt) : (tensor<2x128x64xf64>, tensor<2x64x128xf64>) -> tensor<2x128x128xf64>
  %2 = "gflow.reduce"(%1) {dims = array<i64: 2>, kind = "max"} : (tensor<2x128x128xf64>) -> tensor<2x128xf64>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0, 1>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xf64>) -> tensor<2x128x128xf64>
  %4 = "gflow.sub"(%1, %3) : (tensor<2x128x128xf64>, tensor<2x128x128xf64>) -> tensor<2x128x128xf64>
  %5 = "gflow.exp"(%4) : (tensor<2x128x128xf64>) -> tensor<2x128x128xf64>
  %6 = "gflow.reduce"(%5) {dims = array<i64: 2>, kind = "sum"} : (tensor<2x128x128xf64>) -> tensor<2x128xf64>
  %7 = "gflow.broadcast"(%6) {dims = array<i64: 0, 1>, shape = array<i64: 2, 128, 128>} : (tensor<2x128xf64>) -> tensor<2x128x128xf64>
  %8 = "gflow.div"(%5, %7) : (tensor<2x128x128xf64>, tensor<2x128x128xf64>) -> tensor<2x128x128xf64>
  %9 = "gflow.matmul"(%8, %v) : (tensor<2x128x128xf64>, tensor<2x128x64xf64>) -> tensor<2x128x64xf64>
  return %9 : tensor<2x128x64xf64>
}
