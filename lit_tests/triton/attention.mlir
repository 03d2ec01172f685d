// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// The forward is one kernel; blocks that all of q's positions see are apart from those with a mask, and blocks
// that a window hides are left out.

// CHECK:     @forward for cuda:90: 1 steps, 1 kernels
// CHECK:     def attend(
// CHECK:         s = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
// CHECK:         y = tl.dot(p.to(values.dtype), values, y * shrink[:, None], input_precision=PRECISION)
// CHECK:     def attention_{{[0-9a-f]+}}(
// CHECK:       lo, first, last, hi = span(
// CHECK:       if LEFT or DOCS:
// CHECK:         y, m, l = attend(
// CHECK:       y, m, l = attend(
// CHECK:       if LEFT or RIGHT or DOCS or EDGE_N:
// CHECK:         y, m, l = attend(
func.func @forward(%q: tensor<2x512x8x64xbf16>, %k: tensor<2x512x2x64xbf16>, %v: tensor<2x512x2x64xbf16>) -> tensor<2x512x8x64xbf16> {
  %y, %l = "gflow.attention"(%q, %k, %v) {causal = true, scale = 0.125, operandSegmentSizes = array<i32: 1, 2, 0, 0, 0, 0, 0, 0>} : (tensor<2x512x8x64xbf16>, tensor<2x512x2x64xbf16>, tensor<2x512x2x64xbf16>) -> (tensor<2x512x8x64xbf16>, tensor<2x8x512xf32>)
  return %y : tensor<2x512x8x64xbf16>
}
