// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-select-kernels{target=cpu threads=2 isa=x86-64-v4}))' | FileCheck %s --check-prefix=V4
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-select-kernels{target=cpu threads=2 isa=x86-64-v4}))' | %gflow-opt - | FileCheck %s --check-prefix=V4
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-select-kernels{target=cpu threads=2 isa=x86-64-v3}))' | FileCheck %s --check-prefix=V3
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-select-kernels{target=cpu threads=2 isa=none}))' | FileCheck %s --check-prefix=NONE

// Rows are shared evenly among tasks, and forward and backward have blocks of their own.
// V4-LABEL:   func.func @training(
// V4:         "gflow.attention"{{.*}}gflow.kernel = {block = array<i64: 264>, kind = "attention", scratch = {{[0-9]+}} : i64, tile = array<i64: 12, 32, 256>}
// V4:         "gflow.attention_grad"{{.*}}gflow.kernel = {block = array<i64: 132>, kind = "attention", scratch = {{[0-9]+}} : i64, tile = array<i64: 12, 32, 256>}
// V3-LABEL:   func.func @training(
// V3:         "gflow.attention"{{.*}}kind = "attention"{{.*}}tile = array<i64: 6, 16, 256>
// NONE-LABEL: func.func @training(
// NONE:       "gflow.attention"{{.*}}gflow.kernel = {kind = "pytorch"}
// NONE:       "gflow.attention_grad"{{.*}}gflow.kernel = {kind = "pytorch"}
func.func @training(%q: tensor<1x1024x2x64xf32>, %k: tensor<1x1024x2x64xf32>, %v: tensor<1x1024x2x64xf32>) -> (tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>) {
  %0:2 = "gflow.attention"(%q, %k, %v) {causal = true, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>) -> (tensor<1x1024x2x64xf32>, tensor<1x2x1024xf32>)
  %1:3 = "gflow.attention_grad"(%0#0, %q, %k, %v, %0#0, %0#1) {causal = true, operandSegmentSizes = array<i32: 2, 2, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>, tensor<1x2x1024xf32>) -> (tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>)
  return %0#0, %1#0 : tensor<1x1024x2x64xf32>, tensor<1x1024x2x64xf32>
}

// One position: the heads that share keys are the rows, and nothing is packed.
// V4-LABEL: func.func @decode(
// V4:       "gflow.attention"{{.*}}gflow.kernel = {block = array<i64: 4>, kind = "attention_rows", scratch = {{[0-9]+}} : i64, tile = array<i64: 4, 64, 256>}
func.func @decode(%q: tensor<1x1x8x64xf32>, %k: tensor<1x300x2x64xf32>) -> tensor<1x1x8x64xf32> {
  %0:2 = "gflow.attention"(%q, %k, %k) {causal = false, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<1x1x8x64xf32>, tensor<1x300x2x64xf32>, tensor<1x300x2x64xf32>) -> (tensor<1x1x8x64xf32>, tensor<1x8x1xf32>)
  return %0#0 : tensor<1x1x8x64xf32>
}

// Few positions: 16 of their rows are lanes, and 8 keys (of AVX2, 4) go side by side.
// V4-LABEL: func.func @few(
// V4:       "gflow.attention"{{.*}}gflow.kernel = {block = array<i64: 12>, kind = "attention_rows", scratch = {{[0-9]+}} : i64, tile = array<i64: 16, 8, 256>}
// V3-LABEL: func.func @few(
// V3:       "gflow.attention"{{.*}}kind = "attention_rows"{{.*}}tile = array<i64: 16, 4, 256>
func.func @few(%q: tensor<1x3x8x64xf32>, %k: tensor<1x300x2x64xf32>) -> tensor<1x3x8x64xf32> {
  %0:2 = "gflow.attention"(%q, %k, %k) {causal = false, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<1x3x8x64xf32>, tensor<1x300x2x64xf32>, tensor<1x300x2x64xf32>) -> (tensor<1x3x8x64xf32>, tensor<1x8x3xf32>)
  return %0#0 : tensor<1x3x8x64xf32>
}

// Halves are widened to float32.
// V4-LABEL: func.func @halves(
// V4:       "gflow.attention"{{.*}}gflow.kernel = {block = array<i64: {{[0-9]+}}>, kind = "attention"{{.*}}widened = array<i64: 0, 3>}
func.func @halves(%q: tensor<1x64x2x64xbf16>) -> tensor<1x64x2x64xbf16> {
  %0:2 = "gflow.attention"(%q, %q, %q) {causal = false, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>, scale = 1.250000e-01 : f64} : (tensor<1x64x2x64xbf16>, tensor<1x64x2x64xbf16>, tensor<1x64x2x64xbf16>) -> (tensor<1x64x2x64xbf16>, tensor<1x2x64xf32>)
  return %0#0 : tensor<1x64x2x64xbf16>
}
