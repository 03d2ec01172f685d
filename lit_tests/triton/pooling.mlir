// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Values and positions in one pass over each window; an element's gradient is what the windows give that hold it. A byte
// says which element of its window the maximum is.

// CHECK:     @stem for cuda:90: 2 steps, 2 kernels
// CHECK:     def max_pool_{{[0-9a-f]+}}(
// CHECK:       for k0 in tl.static_range(K0):
// CHECK:         for k1 in tl.static_range(K1):
// CHECK:           better = (value > best) | (value != value)
// CHECK:           place = tl.where(better, k0 * K1 + k1, place)
// CHECK:       tl.store(out + row * channels + channel, best.to(tl.bfloat16)
// CHECK:       tl.store(positions + row * channels + channel, place.to(tl.uint8)
// CHECK:     constants: K0 = 3, K1 = 3, J0 = 2, J1 = 2
// CHECK:     def max_pool_grad_{{[0-9a-f]+}}(
// CHECK-NOT: atomic
// CHECK:           sum += tl.where(place == t0 * K1 + t1, value, 0).to(tl.float32)
func.func @stem(%x: tensor<8x112x112x64xbf16>, %dy: tensor<8x56x56x64xbf16>) -> (tensor<8x56x56x64xbf16>, tensor<8x112x112x64xbf16>) {
  %y:2 = "gflow.max_pool"(%x) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<8x112x112x64xbf16>) -> (tensor<8x56x56x64xbf16>, tensor<8x56x56x64xi64>)
  %dx = "gflow.max_pool_grad"(%dy, %y#1) {kernel = array<i64: 3, 3>, stride = array<i64: 2, 2>, padding = array<i64: 1, 1>, layout = "N*C", shape = array<i64: 8, 112, 112, 64>} : (tensor<8x56x56x64xbf16>, tensor<8x56x56x64xi64>) -> tensor<8x112x112x64xbf16>
  return %y#0, %dx : tensor<8x56x56x64xbf16>, tensor<8x112x112x64xbf16>
}

// Means of shares: a window's size follows from where it begins and ends. Nothing in padding is read.

// CHECK:     @shares for cuda:90: 2 steps, 2 kernels
// CHECK:     def avg_pool_{{[0-9a-f]+}}(
// CHECK:       h0 = q0 * x_size0 // y_size0
// CHECK:       mean = tl.div_rn(sum, ((end0 - h0) * (end1 - h1)).to(tl.float32))
// CHECK:     def avg_pool_grad_{{[0-9a-f]+}}(
// CHECK:       low0 = q0 * y_size0 // x_size0
func.func @shares(%x: tensor<8x24x57x57xf32>, %dy: tensor<8x24x7x7xf32>) -> (tensor<8x24x7x7xf32>, tensor<8x24x57x57xf32>) {
  %y = "gflow.avg_pool"(%x) {size = array<i64: 7, 7>, layout = "NC*"} : (tensor<8x24x57x57xf32>) -> tensor<8x24x7x7xf32>
  %dx = "gflow.avg_pool_grad"(%dy) {size = array<i64: 7, 7>, layout = "NC*", shape = array<i64: 8, 24, 57, 57>} : (tensor<8x24x7x7xf32>) -> tensor<8x24x57x57xf32>
  return %y, %dx : tensor<8x24x7x7xf32>, tensor<8x24x57x57xf32>
}
