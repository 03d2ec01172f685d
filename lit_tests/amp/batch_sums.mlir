// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-amp{dtype=bf16}))' | FileCheck %s

// A gradient that two branches give, as a batch norm reads it: stored as a half, as autocast has it. A norm over
// channels takes the sum in full.
// CHECK-LABEL: func.func @gradient(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<8x8xf32>) -> tensor<8x8xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%[[v3]], %[[v1]]) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.sub"(%[[v2]], %[[v4]]) : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%[[v5]]) {dtype = "f32"} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.reduce"(%[[v6]]) {dims = array<i64: 0>, kind = "sum"} : (tensor<4x8xf32>) -> tensor<8xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.exp"(%[[v6]]) : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   return %[[v7]], %[[v8]] : tensor<8xf32>, tensor<4x8xf32>
func.func @gradient(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<8xf32>, tensor<4x8xf32>) {
  %0 = "gflow.matmul"(%a, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = "gflow.matmul"(%b, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %2 = "gflow.sub"(%0, %1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "gflow.reduce"(%2) {dims = array<i64: 0>, kind = "sum"} : (tensor<4x8xf32>) -> tensor<8xf32>
  %4 = "gflow.exp"(%2) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %3, %4 : tensor<8xf32>, tensor<4x8xf32>
}

// CHECK-LABEL: func.func @rows(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg2) {dtype = "bf16"} : (tensor<8x8xf32>) -> tensor<8x8xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.matmul"(%[[v0]], %[[v1]]) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.matmul"(%[[v3]], %[[v1]]) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.convert"(%[[v2]]) {dtype = "f32"} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.convert"(%[[v4]]) {dtype = "f32"} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.sub"(%[[v5]], %[[v6]]) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.reduce"(%[[v7]]) {dims = array<i64: 1>, kind = "sum"} : (tensor<4x8xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.exp"(%[[v7]]) : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   return %[[v8]], %[[v9]] : tensor<4xf32>, tensor<4x8xf32>
func.func @rows(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>, %w: tensor<8x8xf32>) -> (tensor<4xf32>, tensor<4x8xf32>) {
  %0 = "gflow.matmul"(%a, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = "gflow.matmul"(%b, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %2 = "gflow.sub"(%0, %1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "gflow.reduce"(%2) {dims = array<i64: 1>, kind = "sum"} : (tensor<4x8xf32>) -> tensor<4xf32>
  %4 = "gflow.exp"(%2) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %3, %4 : tensor<4xf32>, tensor<4x8xf32>
}

// The deviations of a batch norm: their sum and sum of squares are made as they are computed, so nothing is rounded.
// What the norm gives, by a multiply-add for each channel, is rounded for the ReLU, the product and all others.
// CHECK-LABEL: func.func @norm(
// CHECK:         %[[k:.+]] = "gflow.broadcast"(%arg2)
// CHECK-NEXT:    %[[y:.+]] = "gflow.convert"(%{{.+}}) {dtype = "f32"} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK-NEXT:    %[[d:.+]] = "gflow.sub"(%[[y]], %[[k]]) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:    %[[s:.+]] = "gflow.reduce"(%[[d]])
// CHECK-NEXT:    %[[q:.+]] = "gflow.mul"(%[[d]], %[[d]]) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:    %[[ss:.+]] = "gflow.reduce"(%[[q]])
// CHECK-NEXT:    %[[c:.+]] = "gflow.broadcast"(%arg3)
// CHECK-NEXT:    %[[e:.+]] = "gflow.sub"(%[[y]], %[[c]]) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:    %[[n:.+]] = "gflow.fma"(%[[e]], %[[c]], %[[k]]) : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:    %[[h:.+]] = "gflow.convert"(%[[n]]) {dtype = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK:         %[[r:.+]] = "gflow.maximum"(%[[h]], %{{.+}}) : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT:    "gflow.matmul"(%[[r]], %{{.+}})
// CHECK:         "gflow.exp"(%{{.+}}) : (tensor<4x8xf32>) -> tensor<4x8xf32>
func.func @norm(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>, %k: tensor<8xf32>, %c: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<4x8xf32>} : () -> tensor<4x8xf32>
  %0 = "gflow.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = "gflow.broadcast"(%k) {dims = array<i64: 1>, shape = array<i64: 4, 8>} : (tensor<8xf32>) -> tensor<4x8xf32>
  %2 = "gflow.sub"(%0, %1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "gflow.reduce"(%2) {dims = array<i64: 0>, kind = "sum"} : (tensor<4x8xf32>) -> tensor<8xf32>
  %4 = "gflow.mul"(%2, %2) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = "gflow.reduce"(%4) {dims = array<i64: 0>, kind = "sum"} : (tensor<4x8xf32>) -> tensor<8xf32>
  %6 = "gflow.broadcast"(%c) {dims = array<i64: 1>, shape = array<i64: 4, 8>} : (tensor<8xf32>) -> tensor<4x8xf32>
  %11 = "gflow.sub"(%0, %6) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %7 = "gflow.fma"(%11, %6, %1) : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %8 = "gflow.maximum"(%7, %zero) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %9 = "gflow.matmul"(%8, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %10 = "gflow.exp"(%8) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %3, %5, %9, %10 : tensor<8xf32>, tensor<8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
