// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// The forward is one kernel; blocks that all of q's positions see are apart from those with a mask, and blocks
// that a window hides are left out.

// CHECK:     @forward for cuda:90: 1 steps, 1 kernels
// CHECK:     def attend(
// CHECK:         s = products_of(q, q_rest, keys, keys_rest, REST_D)
// CHECK:         y, y_rest = add_rows(y * shrink[:, None], y_rest, p.to(values.dtype), values, values_rest, REST_DV)
// CHECK:     def attention_{{[0-9a-f]+}}(
// CHECK:       lo, first, last, hi = span(
// CHECK:       if LEFT or DOCS:
// CHECK:         y, y_rest, m, l = attend(
// CHECK:       y, y_rest, m, l = attend(
// CHECK:       if LEFT or RIGHT or DOCS or EDGE_N:
// CHECK:         y, y_rest, m, l = attend(
func.func @forward(%q: tensor<2x512x8x64xbf16>, %k: tensor<2x512x2x64xbf16>, %v: tensor<2x512x2x64xbf16>) -> tensor<2x512x8x64xbf16> {
  %y, %l = "gflow.attention"(%q, %k, %v) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<2x512x8x64xbf16>, tensor<2x512x2x64xbf16>, tensor<2x512x2x64xbf16>) -> (tensor<2x512x8x64xbf16>, tensor<2x8x512xf32>)
  return %y : tensor<2x512x8x64xbf16>
}

// 192 channels of q and k are in blocks of 128 and 64, and 96 of v in blocks of 64 and 32; none is padded.
// CHECK:     @parts for cuda:90
// CHECK:     constants: {{.*}}D = 192, DV = 96, BLOCK_D = 128, REST_D = 64, BLOCK_DV = 64, REST_DV = 32,
func.func @parts(%q: tensor<2x512x8x192xbf16>, %v: tensor<2x512x8x96xbf16>) -> tensor<2x512x8x96xbf16> {
  %y, %l = "gflow.attention"(%q, %q, %v) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 2, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x512x8x192xbf16>, tensor<2x512x8x192xbf16>, tensor<2x512x8x96xbf16>) -> (tensor<2x512x8x96xbf16>, tensor<2x8x512xf32>)
  return %y : tensor<2x512x8x96xbf16>
}
