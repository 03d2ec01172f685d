// RUN: %gflow-opt %s --gflow-simplify | FileCheck %s

// CHECK-LABEL: func.func @nothing(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.reshape"(%arg1) {shape = array<i64: 2>} : (tensor<2x1xf32>) -> tensor<2xf32>
// CHECK-NEXT:   return %arg0, %[[v0]] : tensor<2x3xf32>, tensor<2xf32>
func.func @nothing(%x: tensor<2x3xf32>, %y: tensor<2x1xf32>) -> (tensor<2x3xf32>, tensor<2xf32>) {
  %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = "gflow.reduce"(%y) {kind = "max", dims = array<i64: 1>} : (tensor<2x1xf32>) -> tensor<2xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<2xf32>
}

// CHECK-LABEL: func.func @constant(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0> : tensor<2xi64>} : () -> tensor<2xi64>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<2xf32>} : () -> tensor<2xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<3.000000e+00> : tensor<2xf32>} : () -> tensor<2xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.constant"() {value = dense<9.000000e+00> : tensor<2xf32>} : () -> tensor<2xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.constant"() {value = dense<3.000000e+00> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.reduce"(%[[v4]]) {dims = array<i64: 1>, kind = "prod"} : (tensor<2x3xf32>) -> tensor<2xf32>
// CHECK-NEXT:   return %[[v3]], %[[v2]], %[[v1]], %[[v0]], %[[v5]] : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi64>, tensor<2xf32>
func.func @constant() -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi64>, tensor<2xf32>) {
  %a = "gflow.constant"() {value = dense<3.0> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
  %0 = "gflow.reduce"(%a) {kind = "sum", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  %1 = "gflow.reduce"(%a) {kind = "max", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  %e = "gflow.constant"() {value = dense<5.0> : tensor<2x0xf32>} : () -> tensor<2x0xf32>
  %2 = "gflow.reduce"(%e) {kind = "prod", dims = array<i64: 1>} : (tensor<2x0xf32>) -> tensor<2xf32>
  %3 = "gflow.reduce"(%a) {kind = "argmax", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xi64>
  %4 = "gflow.reduce"(%a) {kind = "prod", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  return %0, %1, %2, %3, %4 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi64>, tensor<2xf32>
}

// CHECK-LABEL: func.func @broadcast(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<3.000000e+00> : tensor<2xf32>} : () -> tensor<2xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 0>, shape = array<i64: 2, 3>} : (tensor<2xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.mul"(%arg0, %[[v0]]) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.reduce"(%[[v1]]) {dims = array<i64: 0>, kind = "sum"} : (tensor<2x3xf32>) -> tensor<3xf32>
// CHECK-NEXT:   return %[[v2]], %arg0, %[[v3]] : tensor<2xf32>, tensor<2xf32>, tensor<3xf32>
func.func @broadcast(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<3xf32>) {
  %a = "gflow.broadcast"(%x) {shape = array<i64: 2, 3>, dims = array<i64: 0>} : (tensor<2xf32>) -> tensor<2x3xf32>
  %0 = "gflow.reduce"(%a) {kind = "sum", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  %1 = "gflow.reduce"(%a) {kind = "max", dims = array<i64: 1>} : (tensor<2x3xf32>) -> tensor<2xf32>
  %2 = "gflow.reduce"(%a) {kind = "sum", dims = array<i64: 0>} : (tensor<2x3xf32>) -> tensor<3xf32>
  return %0, %1, %2 : tensor<2xf32>, tensor<2xf32>, tensor<3xf32>
}

// CHECK-LABEL: func.func @matmul(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
// CHECK-NEXT:   return %[[v0]] : tensor<2x3xf32>
func.func @matmul(%a: tensor<2x0xf32>, %b: tensor<0x3xf32>) -> tensor<2x3xf32> {
  %0 = "gflow.matmul"(%a, %b) : (tensor<2x0xf32>, tensor<0x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
