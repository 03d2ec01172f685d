// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Channels last: K walks over taps and channels, input positions outside of the image give 0. The weight has its
// channels side by side already.

// CHECK:     @forward for cuda:90: 1 steps, 1 kernels
// CHECK:     def convolution_2d_maximum_
// CHECK:       blocks = tl.cdiv(C, BLOCK_K)
// CHECK:       for step in range(0, K0 * K1 * blocks):
// CHECK:         c = step % blocks * BLOCK_K + offs_k
// CHECK:         k1 = step // blocks % K1
// CHECK:         u0 = h0 + k0
// CHECK:         inside = (u0 >= 0) & (u0 < x_size0) & (u1 >= 0) & (u1 < x_size1)
// CHECK:         x = tl.load({{.*}}, mask=inside[:, None], other=0.0)
// CHECK:         acc = tl.dot(x, y, acc)
// CHECK:       tl.store(out0 + (rows * out0_s0)[:, None] + cols[None, :]
func.func @forward(%x: tensor<8x14x14x64xf16>, %w: tensor<64x3x3x64xf16>) -> tensor<8x14x14x64xf16> {
  %y = "gflow.convolution"(%x, %w) {dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", padding = array<i64: 1, 1>, stride = array<i64: 1, 1>} : (tensor<8x14x14x64xf16>, tensor<64x3x3x64xf16>) -> tensor<8x14x14x64xf16>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<8x14x14x64xf16>} : () -> tensor<8x14x14x64xf16>
  %r = "gflow.maximum"(%y, %z) : (tensor<8x14x14x64xf16>, tensor<8x14x14x64xf16>) -> tensor<8x14x14x64xf16>
  return %r : tensor<8x14x14x64xf16>
}
