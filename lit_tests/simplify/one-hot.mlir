// RUN: %gflow-opt %s --gflow-simplify | FileCheck %s

// A sum that one position at most takes part in is a choice.

// CHECK-LABEL: func.func @sum(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<9> : tensor<4xi64>} : () -> tensor<4xi64>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<0> : tensor<4xi64>} : () -> tensor<4xi64>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.broadcast"(%arg2) {dims = array<i64>, shape = array<i64: 4>} : (tensor<f32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.compare"(%arg0, %[[v2]]) {predicate = "ge"} : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi1>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.compare"(%arg0, %[[v1]]) {predicate = "lt"} : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi1>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.and"(%[[v4]], %[[v5]]) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.and"(%[[v6]], %arg1) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.select"(%[[v7]], %[[v3]], %[[v0]]) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v8]] : tensor<4xf32>
func.func @sum(%index: tensor<4xi64>, %mask: tensor<4xi1>, %scale: tensor<f32>) -> tensor<4xf32> {
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<4x9xf32>} : () -> tensor<4x9xf32>
  %position = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 4, 9>} : () -> tensor<4x9xi64>
  %i = "gflow.broadcast"(%index) {dims = array<i64: 0>, shape = array<i64: 4, 9>} : (tensor<4xi64>) -> tensor<4x9xi64>
  %m = "gflow.broadcast"(%mask) {dims = array<i64: 0>, shape = array<i64: 4, 9>} : (tensor<4xi1>) -> tensor<4x9xi1>
  %s = "gflow.broadcast"(%scale) {dims = array<i64>, shape = array<i64: 4, 9>} : (tensor<f32>) -> tensor<4x9xf32>
  %eq = "gflow.compare"(%position, %i) {predicate = "eq"} : (tensor<4x9xi64>, tensor<4x9xi64>) -> tensor<4x9xi1>
  %hit = "gflow.and"(%eq, %m) : (tensor<4x9xi1>, tensor<4x9xi1>) -> tensor<4x9xi1>
  %chosen = "gflow.select"(%hit, %s, %zero) : (tensor<4x9xi1>, tensor<4x9xf32>, tensor<4x9xf32>) -> tensor<4x9xf32>
  %sum = "gflow.reduce"(%chosen) {dims = array<i64: 1>, kind = "sum"} : (tensor<4x9xf32>) -> tensor<4xf32>
  return %sum : tensor<4xf32>
}

// The values differ along the vocabulary: the sum stays.

// CHECK-LABEL: func.func @values(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<4x9xf32>} : () -> tensor<4x9xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 4, 9>} : () -> tensor<4x9xi64>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64: 0>, shape = array<i64: 4, 9>} : (tensor<4xi64>) -> tensor<4x9xi64>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.compare"(%[[v1]], %[[v2]]) {predicate = "eq"} : (tensor<4x9xi64>, tensor<4x9xi64>) -> tensor<4x9xi1>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.select"(%[[v3]], %arg1, %[[v0]]) : (tensor<4x9xi1>, tensor<4x9xf32>, tensor<4x9xf32>) -> tensor<4x9xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.reduce"(%[[v4]]) {dims = array<i64: 1>, kind = "sum"} : (tensor<4x9xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v5]] : tensor<4xf32>
func.func @values(%index: tensor<4xi64>, %x: tensor<4x9xf32>) -> tensor<4xf32> {
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<4x9xf32>} : () -> tensor<4x9xf32>
  %position = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 4, 9>} : () -> tensor<4x9xi64>
  %i = "gflow.broadcast"(%index) {dims = array<i64: 0>, shape = array<i64: 4, 9>} : (tensor<4xi64>) -> tensor<4x9xi64>
  %eq = "gflow.compare"(%position, %i) {predicate = "eq"} : (tensor<4x9xi64>, tensor<4x9xi64>) -> tensor<4x9xi1>
  %chosen = "gflow.select"(%eq, %x, %zero) : (tensor<4x9xi1>, tensor<4x9xf32>, tensor<4x9xf32>) -> tensor<4x9xf32>
  %sum = "gflow.reduce"(%chosen) {dims = array<i64: 1>, kind = "sum"} : (tensor<4x9xf32>) -> tensor<4xf32>
  return %sum : tensor<4xf32>
}
