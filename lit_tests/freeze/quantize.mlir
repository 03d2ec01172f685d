// RUN: %gflow-opt %s --gflow-quantize-weights --cse | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-quantize-weights{bits=4 least=64},gflow-freeze))' | FileCheck %s --check-prefix=FOUR
// RUN: not %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-quantize-weights{bits=3}))' 2>&1 | FileCheck %s --check-prefix=THREE

// THREE: weights have 8 or 4 bits, found 3

// CHECK-LABEL: func.func @linear(
// CHECK:         "gflow.reduce"(%{{.+}}) {dims = array<i64: 2>, kind = "max"}
// CHECK:         "gflow.convert"(%{{.+}}) {dtype = "i8"}
// CHECK:         "gflow.quantized_matmul"(%arg0, %{{.+}}, %{{.+}}, %{{.+}}) {bits = 8 : i64, columns = 96 : i64, source = "w"} : (tensor<2x64xf32>, tensor<2x4096xi8>, tensor<2x64xf32>, tensor<f32>) -> tensor<2x96xf32>
// FOUR-LABEL:  func.func @linear(%arg0: tensor<2x64xf32>
// FOUR-NOT:      "gflow.constant"
// FOUR:          "gflow.quantized_matmul"(%arg0, %{{.+}}, %{{.+}}, %{{.+}}) {bits = 4 : i64, columns = 96 : i64, source = "w"} : (tensor<2x64xf32>, tensor<2x2048xui8>, tensor<2x128xf32>, tensor<f32>) -> tensor<2x96xf32>
func.func @linear(%x: tensor<2x64xf32>, %w: tensor<96x64xf32> {gflow.frozen = true, gflow.name = "w"}) -> tensor<2x96xf32> {
  %0 = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<96x64xf32>) -> tensor<64x96xf32>
  %1 = "gflow.matmul"(%x, %0) : (tensor<2x64xf32>, tensor<64x96xf32>) -> tensor<2x96xf32>
  return %1 : tensor<2x96xf32>
}

// What keeps its type says why; what is not frozen is left alone.
// CHECK-LABEL: func.func @others(
// CHECK:         "gflow.matmul"(%arg0, %arg1) {gflow.unquantized = "w: its K of 33 is no multiple of 32"}
// CHECK:         "gflow.matmul"(%arg0, %arg2) :
// CHECK:         "gflow.matmul"(%arg0, %arg3) {gflow.unquantized = "v: its K of 33 is no multiple of 32"}
func.func @others(%x: tensor<2x33xf32>, %w: tensor<33x200xf32> {gflow.frozen = true, gflow.name = "w"}, %u: tensor<33x200xf32>, %s: tensor<33x2xf32> {gflow.frozen = true, gflow.name = "v"}) -> (tensor<2x200xf32>, tensor<2x200xf32>, tensor<2x2xf32>) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<2x33xf32>, tensor<33x200xf32>) -> tensor<2x200xf32>
  %1 = "gflow.matmul"(%x, %u) : (tensor<2x33xf32>, tensor<33x200xf32>) -> tensor<2x200xf32>
  %2 = "gflow.matmul"(%x, %s) : (tensor<2x33xf32>, tensor<33x2xf32>) -> tensor<2x2xf32>
  return %0, %1, %2 : tensor<2x200xf32>, tensor<2x200xf32>, tensor<2x2xf32>
}
