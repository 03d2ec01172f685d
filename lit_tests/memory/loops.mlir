// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v3}))' | FileCheck %s

// How regions run on a processor: vectors along rows of a sum of rows, and along columns, three side by side, of a sum of
// columns, whose rows threads share; work of some microseconds stays with one thread.

// CHECK-LABEL: func.func @rows(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 16 : i64, order = array<i64: 0, 1>}
func.func @rows(%x: tensor<24x48xf32>) -> tensor<24xf32> {
  %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64: 1>} : (tensor<24x48xf32>) -> tensor<24xf32>
  return %0 : tensor<24xf32>
}

// CHECK-LABEL: func.func @columns(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 16 : i64, order = array<i64: 0, 1>, scratch = 768 : i64, share = "inner", threads = "all", unroll = 3 : i64}
func.func @columns(%x: tensor<4096x48xf32>) -> tensor<48xf32> {
  %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64: 0>} : (tensor<4096x48xf32>) -> tensor<48xf32>
  return %0 : tensor<48xf32>
}

// CHECK-LABEL: func.func @doubles(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 8 : i64, order = array<i64: 0>}
func.func @doubles(%x: tensor<24x48xf64>) -> tensor<24x48xf64> {
  %0 = "gflow.exp"(%x) : (tensor<24x48xf64>) -> tensor<24x48xf64>
  return %0 : tensor<24x48xf64>
}
