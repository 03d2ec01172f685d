// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-pack-weights{isa=x86-64-v4+amx}))' | FileCheck %s --check-prefix=AMX
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-pack-weights{isa=x86-64-v4}))' | FileCheck %s --check-prefix=V4

// Products of many rows are faster by Intel AMX, whose panels are packed at each call, than with a packed weight.
// AMX-LABEL: func.func @many_rows(
// AMX:       "gflow.matmul"
// V4-LABEL:  func.func @many_rows(
// V4:        "gflow.packed_product"
func.func @many_rows(%x: tensor<1024x768xf32>, %w: tensor<768x3072xf32> {gflow.frozen = true}) -> tensor<1024x3072xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<1024x768xf32>, tensor<768x3072xf32>) -> tensor<1024x3072xf32>
  return %0 : tensor<1024x3072xf32>
}

// AMX-LABEL: func.func @some_rows(
// AMX:       "gflow.packed_product"
func.func @some_rows(%x: tensor<48x768xf32>, %w: tensor<768x3072xf32> {gflow.frozen = true}) -> tensor<48x3072xf32> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<48x768xf32>, tensor<768x3072xf32>) -> tensor<48x3072xf32>
  return %0 : tensor<48x3072xf32>
}
